/* The ops of core_device.h on keys and values: they are stored, attended to and copied. */
#ifndef HEADRACE_CORE_DEVICE_KV_H_
#define HEADRACE_CORE_DEVICE_KV_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Blocks of keys and values of one layer. A block holds a row of head_dim entries for each KV head and token: keys
 * [kv_heads, block_size, head_dim], then values in the same way, and behind them, where the format has codes, two
 * floats {step, low} for each row: of keys [kv_heads, block_size, 2], then of values. An entry is low + step * code.
 *   BFLOAT16  entries
 *   INT8      codes 0 ... 255, one a byte
 *   UINT4     codes 0 ... 15, eight in a word of 4 bytes: entries 2 j and 2 j + 1 of the eight in the bits from 4 j
 *             and from 4 j + 16 on; heads are Hadamard rotated (common/hadamard.h) by core_append_kv, and
 *             attention reverses it. Queries are rotated as well, and divided by the entries of a block */
typedef struct CoreKvBlocks {
  void* data;         /* block 0, aligned to 16 */
  int64_t stride;     /* bytes from a block to the next, a multiple of 16: at least core_kv_block_bytes() */
  int64_t count;      /* blocks */
  int32_t kv_heads;   /* at least 1 */
  int32_t head_dim;   /* 64, 80, 96, 128 or 256 */
  int32_t block_size; /* tokens of a block, a multiple of 16 */
  int32_t kv;         /* CoreKv: BFLOAT16, INT8 or UINT4 */
} CoreKvBlocks;

/* Bytes of one block of one layer, where the last four fields are right; else 0. */
CORE_API int64_t core_kv_block_bytes(const CoreKvBlocks* blocks);

/* Norms queries and keys by head, where there are weights for it; rotates them by position; and stores keys and values
 * in the slots of their tokens. Entry i of the first half of the rotary_dim leading entries of a head turns with entry
 * i of the second half. All rows are bfloat16; a row's heads lie one behind the other. */
typedef struct CoreAppendKv {
  const void* q;            /* [tokens, heads * head_dim], rows q_stride apart */
  const void* k;            /* [tokens, kv_heads * head_dim], rows k_stride apart */
  const void* v;            /* [tokens, kv_heads * head_dim], rows v_stride apart */
  const void* q_norm;       /* bfloat16 [head_dim], RMSNorm of each head of queries; null: none */
  const void* k_norm;       /* bfloat16 [head_dim]; null: none */
  const float* cos;         /* [positions, rotary_dim / 2] */
  const float* sin;         /* [positions, rotary_dim / 2] */
  const int32_t* positions; /* [tokens] position of each token */
  const int32_t* slots;     /* [tokens] block * block_size + place in the block; negative: not stored */
  void* q_out;              /* [tokens, heads * head_dim], without gaps; may be q where that has none; for attention to
                             * blocks of this format */
  CoreKvBlocks blocks;
  int64_t q_stride; /* elements, even, as are the next two */
  int64_t k_stride;
  int64_t v_stride;
  int32_t tokens; /* 0: nothing is done */
  int32_t heads;
  int32_t rotary_dim; /* even, at most head_dim; 0: nothing turns, and cos, sin and positions may be null */
  float eps;          /* of the norms */
} CoreAppendKv;

/* Attention of one query row a sequence to all that is stored of it, its own key included. The blocks of a sequence
 * are shared among `splits` groups of threads, whose parts are joined at the end. Where parts begin depends on the
 * sequence's length alone, with split_size 0 on splits too. */
typedef struct CoreDecodeAttention {
  const void* q;         /* bfloat16 [sequences, heads * head_dim], rows q_stride apart */
  const int32_t* tables; /* [sequences, max_blocks] numbers of blocks */
  const int32_t* stored; /* [sequences] tokens that are stored, 0: the row's output is 0 */
  void* out;             /* bfloat16 [sequences, heads * head_dim] */
  float* parts;          /* [sequences, heads, splits, head_dim]; null where splits is 1, as the next */
  float* part_sums;      /* [sequences, heads, splits, 2] */
  CoreKvBlocks blocks;
  int64_t q_stride;   /* elements, a multiple of 8 */
  int32_t sequences;  /* 0: nothing is done; at most 65535 */
  int32_t heads;      /* a multiple of kv_heads */
  int32_t max_blocks; /* of a sequence: width of the tables */
  int32_t splits;     /* 1 ... 65535 */
  int32_t split_size; /* tokens of a part, a multiple of 16, the last taking what is left; 0: equal parts */
  int32_t window;     /* a row at position p attends to positions above p - window; 0: to all */
  float scale;        /* of the products of queries and keys */
  float soft_cap;     /* scores become soft_cap * tanh(score / soft_cap); 0: they stay */
} CoreDecodeAttention;

/* Causal attention of the rows of some sequences, each to its own sequence in the blocks; keys and values of the rows
 * themselves are stored already. */
typedef struct CorePrefillAttention {
  const void* q;         /* bfloat16 [tokens, heads * head_dim], rows q_stride apart */
  const int32_t* tables; /* [sequences, max_blocks] */
  const int32_t* firsts; /* [sequences + 1] first row of each sequence, and the end of the last */
  const int32_t* stored; /* [sequences] tokens that are stored, the rows included */
  void* out;             /* bfloat16 [tokens, heads * head_dim] */
  CoreKvBlocks blocks;
  int64_t q_stride;   /* elements, a multiple of 8 */
  int32_t sequences;  /* 0: nothing is done; at most 65535 */
  int32_t longest;    /* rows of the longest sequence; 0: nothing is done */
  int32_t heads;      /* a multiple of kv_heads */
  int32_t max_blocks; /* width of the tables */
  int32_t window;     /* as in CoreDecodeAttention, and the next two */
  float scale;
  float soft_cap;
} CorePrefillAttention;

/* Copies whole blocks, within a pool or between pools of the same shape, of which one may lie in pinned memory of the
 * host. A block may consist of several pieces, such as one a layer. No block is written that is also read. */
typedef struct CoreCopyBlocks {
  const void* source;    /* aligned to 16 */
  void* target;          /* aligned to 16 */
  const int32_t* pairs;  /* [count, 2] blocks: the one to read, the one to write */
  int64_t bytes;         /* of a piece, and of the strides: multiples of 16 */
  int64_t source_stride; /* from a block to the next */
  int64_t target_stride;
  int64_t source_piece_stride; /* from a piece of a block to the next */
  int64_t target_piece_stride;
  int32_t count;  /* 0: nothing is done */
  int32_t pieces; /* 1 ... 65535 */
} CoreCopyBlocks;

#define CORE_DEVICE_KV_OPS(OP)                \
  OP(append_kv, CoreAppendKv)                 \
  OP(decode_attention, CoreDecodeAttention)   \
  OP(prefill_attention, CorePrefillAttention) \
  OP(copy_blocks, CoreCopyBlocks)

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_DEVICE_KV_H_ */
