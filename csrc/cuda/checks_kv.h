// Checks of the arguments of core_device_kv.h.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/check.h"
#include "core_device_kv.h"

namespace core {

constexpr int32_t kMaxGridYZ = 65535;

// A condition on a field, and what it is where it does not hold.
struct Condition {
  bool holds;
  CoreCode code;
  size_t offset;
};

template <size_t N>
CoreStatus check_all(const Condition (&conditions)[N]) {
  for (const Condition& condition : conditions) {
    if (!condition.holds) return bad_field(condition.code, condition.offset);
  }
  return CORE_OK;
}

inline bool is_head_dim(int32_t dim) {
  return dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 256;
}

// Bits of an entry on the device; 0 for a format that it does not store.
inline int64_t kv_bits(int32_t kv) {
  return kv == CORE_KV_BFLOAT16 ? 16 : kv == CORE_KV_INT8 ? 8 : kv == CORE_KV_UINT4 ? 4 : 0;
}

inline bool is_kv_shape(const CoreKvBlocks& blocks) {
  return kv_bits(blocks.kv) != 0 && is_head_dim(blocks.head_dim) && blocks.kv_heads > 0 && blocks.block_size > 0 &&
         blocks.block_size % 16 == 0;
}

// Of blocks whose shape is right.
inline int64_t block_bytes(const CoreKvBlocks& blocks) {
  const int64_t rows = int64_t{2} * blocks.kv_heads * blocks.block_size;
  const int64_t scales = blocks.kv == CORE_KV_BFLOAT16 ? 0 : rows * 2 * static_cast<int64_t>(sizeof(float));
  return rows * blocks.head_dim * kv_bits(blocks.kv) / 8 + scales;
}

// Blocks in a struct, at this offset.
inline CoreStatus check_blocks(const CoreKvBlocks& blocks, size_t at) {
  const CoreStatus status = check_all({
      {kv_bits(blocks.kv) != 0, CORE_UNKNOWN_DTYPE, at + offsetof(CoreKvBlocks, kv)},
      {is_head_dim(blocks.head_dim), CORE_BAD_SHAPE, at + offsetof(CoreKvBlocks, head_dim)},
      {blocks.kv_heads > 0 && blocks.kv_heads <= kMaxGridYZ, CORE_BAD_SHAPE, at + offsetof(CoreKvBlocks, kv_heads)},
      {blocks.block_size > 0 && blocks.block_size % 16 == 0, CORE_BAD_SHAPE, at + offsetof(CoreKvBlocks, block_size)},
      {blocks.count > 0 && blocks.count <= kMaxExtent, CORE_BAD_EXTENT, at + offsetof(CoreKvBlocks, count)},
  });
  if (status != CORE_OK) return status;
  if (blocks.stride % 16 != 0 || blocks.stride < block_bytes(blocks)) {
    return bad_field(CORE_BAD_SHAPE, at + offsetof(CoreKvBlocks, stride));
  }
  return check_pointers({{blocks.data, at + offsetof(CoreKvBlocks, data)}}, 16);
}

// Query heads of a struct with blocks.
template <typename Args>
CoreStatus check_heads(const Args& args) {
  const bool fits = args.heads > 0 && args.heads % args.blocks.kv_heads == 0;
  return fits ? CORE_OK : bad_field(CORE_BAD_SHAPE, offsetof(Args, heads));
}

// What the structs of both kinds of attention have in common.
template <typename Args>
CoreStatus check_attention(const Args& args) {
  CoreStatus status = check_blocks(args.blocks, offsetof(Args, blocks));
  if (status == CORE_OK) status = check_heads(args);
  if (status != CORE_OK) return status;
  const int64_t width = int64_t{args.heads} * args.blocks.head_dim;
  status = check_all({
      {args.q_stride >= width && args.q_stride % 8 == 0, CORE_BAD_SHAPE, offsetof(Args, q_stride)},
      {args.sequences <= kMaxGridYZ, CORE_BAD_SHAPE, offsetof(Args, sequences)},
      {args.max_blocks > 0, CORE_BAD_EXTENT, offsetof(Args, max_blocks)},
      {args.window >= 0, CORE_BAD_COUNT, offsetof(Args, window)},
      {std::isfinite(args.scale) && args.scale >= 0, CORE_BAD_NUMBER, offsetof(Args, scale)},
      {std::isfinite(args.soft_cap) && args.soft_cap >= 0, CORE_BAD_NUMBER, offsetof(Args, soft_cap)},
  });
  if (status != CORE_OK) return status;
  status = check_pointers({{args.q, offsetof(Args, q)}, {args.out, offsetof(Args, out)}}, 16);
  if (status != CORE_OK) return status;
  return check_pointers({{args.tables, offsetof(Args, tables)}, {args.stored, offsetof(Args, stored)}}, 4);
}

inline CoreStatus check_append_rows(const CoreAppendKv& args) {
  const int64_t q_width = int64_t{args.heads} * args.blocks.head_dim;
  const int64_t kv_width = int64_t{args.blocks.kv_heads} * args.blocks.head_dim;
  return check_all({
      {args.q_stride >= q_width && args.q_stride % 2 == 0, CORE_BAD_SHAPE, offsetof(CoreAppendKv, q_stride)},
      {args.k_stride >= kv_width && args.k_stride % 2 == 0, CORE_BAD_SHAPE, offsetof(CoreAppendKv, k_stride)},
      {args.v_stride >= kv_width && args.v_stride % 2 == 0, CORE_BAD_SHAPE, offsetof(CoreAppendKv, v_stride)},
      {args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.blocks.head_dim, CORE_BAD_SHAPE,
       offsetof(CoreAppendKv, rotary_dim)},
      {std::isfinite(args.eps) && args.eps >= 0, CORE_BAD_NUMBER, offsetof(CoreAppendKv, eps)},
  });
}

inline CoreStatus check_append_buffers(const CoreAppendKv& args) {
  const PointerField rows[] = {
      {args.q, offsetof(CoreAppendKv, q)},         {args.k, offsetof(CoreAppendKv, k)},
      {args.v, offsetof(CoreAppendKv, v)},         {args.q_out, offsetof(CoreAppendKv, q_out)},
      {args.slots, offsetof(CoreAppendKv, slots)},
  };
  const PointerField turning[] = {
      {args.cos, offsetof(CoreAppendKv, cos)},
      {args.sin, offsetof(CoreAppendKv, sin)},
      {args.positions, offsetof(CoreAppendKv, positions)},
  };
  CoreStatus status = check_pointers(rows, 4);
  if (status == CORE_OK && args.rotary_dim > 0) status = check_pointers(turning, 4);
  if (status == CORE_OK && args.q_norm != nullptr) {
    status = check_pointers({{args.q_norm, offsetof(CoreAppendKv, q_norm)}}, 2);
  }
  if (status == CORE_OK && args.k_norm != nullptr) {
    status = check_pointers({{args.k_norm, offsetof(CoreAppendKv, k_norm)}}, 2);
  }
  return status;
}

inline CoreStatus check(const CoreAppendKv* args) {
  if (args == nullptr) return status(CORE_NULL_POINTER, 0);
  if (args->tokens < 0) return bad_field(CORE_BAD_COUNT, offsetof(CoreAppendKv, tokens));
  if (args->tokens == 0) return CORE_OK;
  CoreStatus status = check_blocks(args->blocks, offsetof(CoreAppendKv, blocks));
  if (status == CORE_OK) status = check_heads(*args);
  if (status == CORE_OK) status = check_append_rows(*args);
  return status == CORE_OK ? check_append_buffers(*args) : status;
}

inline CoreStatus check(const CoreDecodeAttention* args) {
  using Args = CoreDecodeAttention;
  if (args == nullptr) return status(CORE_NULL_POINTER, 0);
  if (args->sequences < 0) return bad_field(CORE_BAD_COUNT, offsetof(Args, sequences));
  if (args->sequences == 0) return CORE_OK;
  CoreStatus status = check_attention(*args);
  if (status != CORE_OK) return status;
  const bool whole_chunks = args->split_size >= 0 && args->split_size % 16 == 0;
  status = check_all({
      {args->splits > 0 && args->splits <= kMaxGridYZ, CORE_BAD_SHAPE, offsetof(Args, splits)},
      {whole_chunks, CORE_BAD_SHAPE, offsetof(Args, split_size)},
  });
  if (status != CORE_OK || args->splits == 1) return status;
  return check_pointers({{args->parts, offsetof(Args, parts)}, {args->part_sums, offsetof(Args, part_sums)}}, 4);
}

inline CoreStatus check(const CorePrefillAttention* args) {
  using Args = CorePrefillAttention;
  if (args == nullptr) return status(CORE_NULL_POINTER, 0);
  if (args->sequences < 0) return bad_field(CORE_BAD_COUNT, offsetof(Args, sequences));
  if (args->longest < 0) return bad_field(CORE_BAD_COUNT, offsetof(Args, longest));
  if (args->sequences == 0 || args->longest == 0) return CORE_OK;
  const CoreStatus status = check_attention(*args);
  return status == CORE_OK ? check_pointers({{args->firsts, offsetof(Args, firsts)}}, 4) : status;
}

inline CoreStatus check(const CoreCopyBlocks* args) {
  using Args = CoreCopyBlocks;
  if (args == nullptr) return status(CORE_NULL_POINTER, 0);
  if (args->count < 0) return bad_field(CORE_BAD_COUNT, offsetof(Args, count));
  if (args->count == 0) return CORE_OK;
  const auto strides = [](int64_t bytes) { return bytes >= 0 && bytes % 16 == 0; };
  const CoreStatus status = check_all({
      {args->bytes > 0 && args->bytes % 16 == 0, CORE_BAD_SHAPE, offsetof(Args, bytes)},
      {strides(args->source_stride), CORE_BAD_SHAPE, offsetof(Args, source_stride)},
      {strides(args->target_stride), CORE_BAD_SHAPE, offsetof(Args, target_stride)},
      {strides(args->source_piece_stride), CORE_BAD_SHAPE, offsetof(Args, source_piece_stride)},
      {strides(args->target_piece_stride), CORE_BAD_SHAPE, offsetof(Args, target_piece_stride)},
      {args->pieces > 0 && args->pieces <= kMaxGridYZ, CORE_BAD_SHAPE, offsetof(Args, pieces)},
  });
  if (status != CORE_OK) return status;
  const CoreStatus blocks =
      check_pointers({{args->source, offsetof(Args, source)}, {args->target, offsetof(Args, target)}}, 16);
  return blocks == CORE_OK ? check_pointers({{args->pairs, offsetof(Args, pairs)}}, 4) : blocks;
}

}  // namespace core
