// Packing of codes into the layout of layout.h, and unpacking, in host memory.
#include <cstring>

#include "cuda/number.h"
#include "cuda/quantized/checks_quantized.h"
#include "cuda/quantized/layout.h"

namespace core {
namespace {

uint32_t read_word(const uint8_t* place) {
  uint32_t word;
  std::memcpy(&word, place, sizeof word);
  return word;
}

void put_codes(const CoreQuantizedPack& pack, const QuantizedLayout& layout, int64_t row) {
  const CoreQuantized& matrix = *pack.matrix;
  auto* data = static_cast<uint8_t*>(const_cast<void*>(matrix.data));
  const uint8_t* codes = pack.codes + row * matrix.inputs;
  for (int64_t k = 0; k < matrix.inputs; k++) {
    const CodePlace place = code_place(layout, matrix.bits, pack.first_row + row, k / 2 * 2);
    const int shift = place.shift + static_cast<int>(k % 2) * 16;
    const uint32_t stored = matrix.bits == 4 ? codes[k] & 0xfu : codes[k] ^ kTurned;
    data[place.word + shift / 8] |= static_cast<uint8_t>(stored << shift % 8);
  }
}

void put_scale(const CoreQuantized& matrix, uint8_t* scales, int64_t place, float value) {
  if (matrix.scales == CORE_FLOAT32) {
    std::memcpy(scales + place * 4, &value, 4);
  } else {
    const Float16 rounded = __float2half_rn(value);
    std::memcpy(scales + place * 2, &rounded, 2);
  }
}

float get_scale(const CoreQuantized& matrix, const uint8_t* scales, int64_t place) {
  if (matrix.scales == CORE_FLOAT32) {
    float value;
    std::memcpy(&value, scales + place * 4, 4);
    return value;
  }
  Float16 value;
  std::memcpy(&value, scales + place * 2, 2);
  return __half2float(value);
}

void put_scales(const CoreQuantizedPack& pack, const QuantizedLayout& layout, int64_t row) {
  const CoreQuantized& matrix = *pack.matrix;
  uint8_t* scales = static_cast<uint8_t*>(const_cast<void*>(matrix.data)) + layout.code_bytes;
  for (int64_t group = 0; group < layout.source_groups; group++) {
    const int64_t place = scale_place(layout, matrix.group, pack.first_row + row, group * matrix.group);
    const int64_t number = row * layout.source_groups + group;
    put_scale(matrix, scales, place, pack.row_scales[number]);
    if (matrix.offsets != 0) put_scale(matrix, scales + layout.scales_bytes, place, pack.row_offsets[number]);
  }
}

// Zero the tiles of these rows, so that padding contributes nothing.
void clear_tiles(const CoreQuantizedPack& pack, const QuantizedLayout& layout) {
  auto* data = static_cast<uint8_t*>(const_cast<void*>(pack.matrix->data));
  const int64_t first = pack.first_row / kTileOutputs,
                last = (pack.first_row + pack.rows + kTileOutputs - 1) / kTileOutputs;
  const auto clear = [&](int64_t begin, int64_t tile_bytes) {
    std::memset(data + begin + first * tile_bytes, 0, static_cast<size_t>((last - first) * tile_bytes));
  };
  clear(0, layout.steps * layout.step_bytes);
  clear(layout.code_bytes, layout.scales_bytes / layout.tiles);
  if (pack.matrix->offsets != 0) clear(layout.code_bytes + layout.scales_bytes, layout.scales_bytes / layout.tiles);
}

CoreStatus check_pack(const CoreQuantizedPack* pack) {
  Check check(pack);
  if (!check.ok()) return check.result();
  check.pointer(pack->matrix);
  if (!check.ok()) return check.result();
  const CoreQuantized& matrix = *pack->matrix;
  const CoreStatus described = quantized_status(&matrix);
  const int64_t last = pack->first_row + pack->rows;
  const bool first_right = pack->first_row >= 0 && pack->first_row % kTileOutputs == 0;
  const bool rows_right =
      pack->rows >= 1 && last <= matrix.outputs && (last % kTileOutputs == 0 || last == matrix.outputs);
  const bool aligned = reinterpret_cast<uintptr_t>(matrix.data) % kChunkBytes == 0;
  check.that(described == CORE_OK, code_of(described), pack->matrix);
  check.that(matrix.data != nullptr, CORE_NULL_POINTER, pack->matrix).that(aligned, CORE_MISALIGNED, pack->matrix);
  check.pointer(pack->codes).pointer(pack->row_scales, sizeof(float));
  check.that((pack->row_offsets != nullptr) == (matrix.offsets != 0), CORE_NULL_POINTER, pack->row_offsets);
  check.that(first_right, CORE_BAD_COUNT, pack->first_row).that(rows_right, CORE_BAD_EXTENT, pack->rows);
  return check.result();
}

}  // namespace
}  // namespace core

int64_t core_quantized_bytes(const CoreQuantized* matrix) {
  if (core::quantized_status(matrix) != CORE_OK) return 0;
  return core::QuantizedLayout(*matrix).bytes(*matrix);
}

CoreStatus core_quantized_pack(const CoreQuantizedPack* pack) {
  if (const CoreStatus status = core::check_pack(pack); status != CORE_OK) return status;
  const core::QuantizedLayout layout(*pack->matrix);
  core::clear_tiles(*pack, layout);
  for (int64_t row = 0; row < pack->rows; row++) {
    core::put_codes(*pack, layout, row);
    core::put_scales(*pack, layout, row);
  }
  return CORE_OK;
}

CoreStatus core_quantized_row(const CoreQuantized* matrix, int64_t row, float* values) {
  if (matrix == nullptr || matrix->data == nullptr || values == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (const CoreStatus status = core::quantized_status(matrix); status != CORE_OK) return status;
  if (row < 0 || row >= matrix->outputs) return core::status(CORE_BAD_COUNT, 0);
  const core::QuantizedLayout layout(*matrix);
  const auto* data = static_cast<const uint8_t*>(matrix->data);
  const uint8_t* scales = data + layout.code_bytes;
  for (int64_t k = 0; k < matrix->inputs; k++) {
    const core::CodePlace place = core::code_place(layout, matrix->bits, row, k / 2 * 2);
    const int shift = place.shift + static_cast<int>(k % 2) * 16;
    const int32_t code = core::code_of_word(core::read_word(data + place.word), shift, matrix->bits);
    const int64_t number = core::scale_place(layout, matrix->group, row, k);
    const float offset = matrix->offsets != 0 ? core::get_scale(*matrix, scales + layout.scales_bytes, number) : 0.0f;
    values[k] = core::get_scale(*matrix, scales, number) * static_cast<float>(code - matrix->zero) + offset;
  }
  return CORE_OK;
}
