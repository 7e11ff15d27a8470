// Layout of a quantized matrix: tiles of 64 outputs, each a sequence of steps of 64 inputs, in which 16 contiguous
// bytes are the codes that one lane of a warp multiplies: the fragments A of mma.h, with outputs as their rows.
//
// A step has a chunk of 16 bytes a lane for each 16 outputs (4 bits: 64 inputs), or for each 16 outputs and 32 inputs
// (8 bits). A fragment of 16 inputs takes 8 codes of a lane: those of its register i, whose two elements are
//   4 bits: nibbles i and i + 4 of a word     8 bits: bytes i % 2 and i % 2 + 2 of word i / 2, with their top bits
//   flipped
// The codes of all tiles are followed by their scales, then by offsets if any: [tiles][groups][64], ordered so that the
// eight of a lane are contiguous: output 16 m + 8 h + g of the tile has index 8 g + 2 m + h.
#pragma once

#include <cstdint>

#include "common/both.h"
#include "core_device.h"

namespace core {

constexpr int kTileOutputs = 64;
constexpr int kStepInputs = 64;
constexpr int kChunkBytes = 16;

struct QuantizedLayout {
  int64_t tiles;
  int64_t steps;
  int64_t groups;         // of a row, including padding of its last step
  int64_t source_groups;  // of a row
  int64_t step_bytes;     // of codes of a tile
  int64_t code_bytes;     // of all codes
  int64_t scale_bytes;    // of one scale
  int64_t scales_bytes;   // of all scales

  CORE_BOTH explicit QuantizedLayout(const CoreQuantized& matrix) {
    const int64_t group = matrix.group != 0 ? matrix.group : matrix.inputs;
    tiles = (matrix.outputs + kTileOutputs - 1) / kTileOutputs;
    steps = (matrix.inputs + kStepInputs - 1) / kStepInputs;
    groups = matrix.group != 0 ? (steps * kStepInputs + group - 1) / group : 1;
    source_groups = (matrix.inputs + group - 1) / group;
    step_bytes = int64_t{kTileOutputs} * kStepInputs * matrix.bits / 8;
    code_bytes = tiles * steps * step_bytes;
    scale_bytes = matrix.scales == CORE_FLOAT32 ? 4 : 2;
    scales_bytes = tiles * groups * kTileOutputs * scale_bytes;
  }

  CORE_BOTH int64_t bytes(const CoreQuantized& matrix) const {
    return code_bytes + scales_bytes * (matrix.offsets != 0 ? 2 : 1);
  }
};

// The position of the codes of an output for two inputs.
struct CodePlace {
  int64_t word;  // first byte of the word, from the beginning of the codes
  int shift;     // of the lower element; the other one is 16 bits above it
};

// Of inputs k and k + 1, where k is even.
CORE_BOTH CodePlace code_place(const QuantizedLayout& layout, int32_t bits, int64_t output, int64_t k) {
  const int o = static_cast<int>(output % kTileOutputs), c = static_cast<int>(k % 16);
  const int m = o / 16, h = o / 8 % 2, lane = o % 8 * 4 + c % 8 / 2, i = c / 8 * 2 + h;
  const int fragment = static_cast<int>(k % kStepInputs / 16);
  const int64_t step = (output / kTileOutputs * layout.steps + k / kStepInputs) * layout.step_bytes;
  if (bits == 4) return {step + (m * 32 + lane) * kChunkBytes + fragment * 4, i * 4};
  const int chunk = m * 2 + fragment / 2;
  return {step + (chunk * 32 + lane) * kChunkBytes + fragment % 2 * 8 + i / 2 * 4, i % 2 * 8};
}

// Return the index of an output's scale for an input.
CORE_BOTH int64_t scale_place(const QuantizedLayout& layout, int32_t group, int64_t output, int64_t k) {
  const int o = static_cast<int>(output % kTileOutputs);
  const int64_t number = group != 0 ? k / group : 0;
  return (output / kTileOutputs * layout.groups + number) * kTileOutputs + o % 8 * 8 + o / 8;
}

// The stored form of an 8-bit code, and back.
constexpr uint32_t kTurned = 0x80;

CORE_BOTH int32_t code_of_word(uint32_t word, int shift, int32_t bits) {
  const uint32_t stored = word >> shift;
  return static_cast<int32_t>(bits == 4 ? stored & 0xf : (stored & 0xff) ^ kTurned);
}

}  // namespace core
