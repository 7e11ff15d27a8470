// Checks of the arguments of core_device_kv.h.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "common/check.h"
#include "core_device_kv.h"

namespace core {

constexpr int32_t kMaxGridYZ = 65535;

inline bool is_head_dim(int32_t dim) {
  return dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 192 || dim == 256;
}

// Return the bits of an entry; 0 for a format that the device does not support.
inline int64_t kv_bits(int32_t kv) {
  return kv == CORE_KV_BFLOAT16 ? 16 : kv == CORE_KV_INT8 ? 8 : kv == CORE_KV_UINT4 ? 4 : 0;
}

inline bool is_kv_shape(const CoreKvBlocks& blocks) {
  return kv_bits(blocks.kv) != 0 && is_head_dim(blocks.head_dim) && blocks.kv_heads > 0 && blocks.block_size > 0 &&
         blocks.block_size % 16 == 0;
}

// Return the bytes of a block; the shape must be valid.
inline int64_t block_bytes(const CoreKvBlocks& blocks) {
  const int64_t rows = int64_t{2} * blocks.kv_heads * blocks.block_size;
  const int64_t scales = blocks.kv == CORE_KV_BFLOAT16 ? 0 : rows * 2 * static_cast<int64_t>(sizeof(float));
  return rows * blocks.head_dim * kv_bits(blocks.kv) / 8 + scales;
}

// Check the blocks of a struct.
inline void check_blocks(Check& check, const CoreKvBlocks& blocks) {
  check.that(kv_bits(blocks.kv) != 0, CORE_UNKNOWN_DTYPE, blocks.kv);
  check.that(is_head_dim(blocks.head_dim), CORE_BAD_SHAPE, blocks.head_dim);
  check.that(blocks.kv_heads > 0 && blocks.kv_heads <= kMaxGridYZ, CORE_BAD_SHAPE, blocks.kv_heads);
  check.that(blocks.block_size > 0 && blocks.block_size % 16 == 0, CORE_BAD_SHAPE, blocks.block_size);
  check.extent(blocks.count);
  const bool apart = check.ok() && blocks.stride % 16 == 0 && blocks.stride >= block_bytes(blocks);
  check.that(apart, CORE_BAD_SHAPE, blocks.stride);
  check.pointer(blocks.data, 16);
}

// Check the blocks and query heads of a struct.
template <typename Args>
void check_heads(Check& check, const Args& args) {
  check_blocks(check, args.blocks);
  check.that(check.ok() && args.heads > 0 && args.heads % args.blocks.kv_heads == 0, CORE_BAD_SHAPE, args.heads);
}

// Check the fields common to both kinds of attention.
template <typename Args>
void check_attention(Check& check, const Args& args) {
  check_heads(check, args);
  const int64_t width = int64_t{args.heads} * args.blocks.head_dim;
  check.that(args.q_stride >= width && args.q_stride % 8 == 0, CORE_BAD_SHAPE, args.q_stride);
  check.that(args.sequences <= kMaxGridYZ, CORE_BAD_SHAPE, args.sequences);
  check.extent(args.max_blocks).not_negative(args.scale).not_negative(args.soft_cap);
  check.pointer(args.q, 16).pointer(args.out, 16).pointer(args.tables, 4);
  check.optional(args.sinks, 2);
}

inline void check_op(Check& check, const CoreAppendKv& args) {
  check.count(args.tokens);
  if (!check.ok() || args.tokens == 0) return;
  check_heads(check, args);
  const int64_t q_width = int64_t{args.heads} * args.blocks.head_dim;
  const int64_t kv_width = int64_t{args.blocks.kv_heads} * args.blocks.head_dim;
  const bool turns = args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.blocks.head_dim;
  check.that(args.q_stride >= q_width && args.q_stride % 2 == 0, CORE_BAD_SHAPE, args.q_stride);
  check.that(args.k_stride >= kv_width && args.k_stride % 2 == 0, CORE_BAD_SHAPE, args.k_stride);
  check.that(args.v_stride >= kv_width && args.v_stride % 2 == 0, CORE_BAD_SHAPE, args.v_stride);
  check.that(turns, CORE_BAD_SHAPE, args.rotary_dim).not_negative(args.eps);
  check.pointer(args.q, 4).pointer(args.k, 4).pointer(args.v, 4).pointer(args.q_out, 4).pointer(args.slots, 4);
  if (args.rotary_dim > 0) check.pointer(args.cos, 4).pointer(args.sin, 4).pointer(args.positions, 4);
  check.optional(args.q_norm, 2).optional(args.k_norm, 2);
}

inline void check_op(Check& check, const CoreDecodeAttention& args) {
  check.count(args.sequences);
  if (!check.ok() || args.sequences == 0) return;
  check_attention(check, args);
  for (const int32_t* number : {&args.most_parts, &args.multiprocessors}) {
    check.that(*number > 0 && *number <= kMaxGridYZ, CORE_BAD_SHAPE, *number);
  }
  check.pointer(args.tasks, 4).pointer(args.list, 4);
  if (args.most_parts != 1) check.pointer(args.parts, 4).pointer(args.part_sums, 4).pointer(args.arrived, 4);
}

inline void check_op(Check& check, const CorePrefillAttention& args) {
  check.count(args.sequences).count(args.rows);
  if (!check.ok() || args.sequences == 0 || args.rows == 0) return;
  check_attention(check, args);
  check.count(args.window).pointer(args.table_rows, 4).pointer(args.firsts, 4).pointer(args.stored, 4);
  check.pointer(args.list, 4);
}

inline void check_op(Check& check, const CoreCopyBlocks& args) {
  check.count(args.count);
  if (!check.ok() || args.count == 0) return;
  check.count(args.limit);
  check.that(args.bytes > 0 && args.bytes % 16 == 0, CORE_BAD_SHAPE, args.bytes);
  for (const int64_t* stride :
       {&args.source_stride, &args.target_stride, &args.source_piece_stride, &args.target_piece_stride}) {
    check.that(*stride >= 0 && *stride % 16 == 0, CORE_BAD_SHAPE, *stride);
  }
  check.that(args.pieces > 0 && args.pieces <= kMaxGridYZ, CORE_BAD_SHAPE, args.pieces);
  check.pointer(args.source, 16).pointer(args.target, 16).pointer(args.pairs, 4);
}

}  // namespace core
