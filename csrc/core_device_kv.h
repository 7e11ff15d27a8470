/* The device ops (core_device.h) on keys and values: append, attention and copies of blocks. */
#ifndef HEADRACE_CORE_DEVICE_KV_H_
#define HEADRACE_CORE_DEVICE_KV_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The KV pool of one layer, owned by the caller. A block holds a row of head_dim entries for each KV head and token:
 * keys [kv_heads, block_size, head_dim], then values likewise. Quantized formats add two floats {step, low} per row:
 * for keys [kv_heads, block_size, 2], then for values. An entry is low + step * code.
 *   BFLOAT16  entries
 *   INT8      codes 0 ... 255, one per byte
 *   UINT4     codes 0 ... 15, eight per 4-byte word: entries 2 j and 2 j + 1 of the eight at bits 4 j and 4 j + 16.
 *             core_append_kv stores heads Hadamard rotated (common/hadamard.h), and attention rotates its output back.
 *             Queries are rotated as well, and divided by the size of a Hadamard block */
typedef struct CoreKvBlocks {
  void* data;         /* block 0, aligned to 16 */
  int64_t stride;     /* bytes from one block to the next, a multiple of 16, at least core_kv_block_bytes() */
  int64_t count;      /* number of blocks */
  int32_t kv_heads;   /* at least 1 */
  int32_t head_dim;   /* 64, 80, 96, 128, 192 or 256 */
  int32_t block_size; /* tokens per block, a multiple of 16 */
  int32_t kv;         /* CoreKv: BFLOAT16, INT8 or UINT4 */
} CoreKvBlocks;

/* Return the bytes of one block of one layer; 0 if one of the last four fields, the only ones read, is invalid. */
CORE_API int64_t core_kv_block_bytes(const CoreKvBlocks* blocks);

/* Apply RMSNorm to each head of queries and keys, if there are weights for it; apply RoPE; and store keys and values in
 * the slots of their tokens. The first rotary_dim entries of each head are rotated: entry i is paired with entry
 * i + rotary_dim / 2. All rows are bfloat16, with contiguous heads. */
typedef struct CoreAppendKv {
  const void* q;            /* [tokens, heads * head_dim], rows q_stride apart */
  const void* k;            /* [tokens, kv_heads * head_dim], rows k_stride apart */
  const void* v;            /* [tokens, kv_heads * head_dim], rows v_stride apart */
  const void* q_norm;       /* bfloat16 [head_dim], RMSNorm of each head of queries; null: none */
  const void* k_norm;       /* bfloat16 [head_dim]; null: none */
  const float* cos;         /* [positions, rotary_dim / 2] */
  const float* sin;         /* [positions, rotary_dim / 2] */
  const int32_t* positions; /* [tokens] position of each token */
  const int32_t* slots;     /* [tokens] block * block_size + slot in the block; negative: not stored */
  void* q_out;              /* [tokens, heads * head_dim], contiguous; may be q if that is; as attention expects queries
                             * for blocks of this format */
  CoreKvBlocks blocks;
  int64_t q_stride; /* elements, even, as are the next two */
  int64_t k_stride;
  int64_t v_stride;
  int32_t tokens; /* 0: no-op */
  int32_t heads;
  int32_t rotary_dim; /* even, at most head_dim; 0: no rotation, and cos, sin and positions may be null */
  float eps;          /* of the norms */
} CoreAppendKv;

/* A task of decode attention: a range of a sequence's tokens, all of which the row sees. */
typedef struct CoreDecodeTask {
  int32_t sequence; /* row of the queries */
  int32_t table;    /* row of the block tables */
  int32_t first;    /* the range; inner bounds of a sequence's ranges are multiples of 16 */
  int32_t end;      /* equal to first: nothing is seen, and the output is 0 */
  int32_t part;     /* number of the range among those of its sequence, from 0 */
  int32_t parts;    /* number of ranges of the sequence, each of them a task of the list */
} CoreDecodeTask;

/* Decode attention: one query row per sequence attends to ranges of the sequence's stored tokens. Thread blocks take
 * the tasks of a list in turn, as many thread blocks as the device runs at once, whatever the list holds; the last one
 * of a sequence joins the results of its parts, in their order. */
typedef struct CoreDecodeAttention {
  const void* q;               /* bfloat16 [sequences, heads * head_dim], rows q_stride apart */
  const int32_t* tables;       /* [rows, max_blocks] block tables */
  const CoreDecodeTask* tasks; /* of all lists; together they cover every sequence */
  const int32_t* list;         /* [2] first task of the list, and their number */
  void* out;                   /* bfloat16 [sequences, heads * head_dim] */
  float* parts;      /* scratch, [sequences, heads, most_parts, head_dim]; null if that is 1, as the next two */
  float* part_sums;  /* scratch, [sequences, heads, most_parts, 2] */
  int32_t* arrived;  /* [sequences, heads] zeros; they are zeros again afterwards */
  const void* sinks; /* bfloat16 [heads], for each a score beside those of its keys, whose weight no value has; null:
                        none */
  CoreKvBlocks blocks;
  int64_t q_stride;        /* elements, a multiple of 8 */
  int32_t sequences;       /* 0: no-op; at most 65535 */
  int32_t heads;           /* a multiple of kv_heads */
  int32_t max_blocks;      /* width of the block tables */
  int32_t most_parts;      /* 1 ... 65535: at least the parts of any sequence of the list */
  int32_t multiprocessors; /* of the device: 1 ... 65535 */
  float scale;             /* multiplies the products of queries and keys */
  float soft_cap;          /* scores become soft_cap * tanh(score / soft_cap); 0: unchanged */
} CoreDecodeAttention;

/* Prefill attention: causal attention of rows of several sequences, each over the blocks of its sequence. The keys and
 * values of the rows themselves must be stored already. Which sequences is read on the device, so that a captured
 * launch may be replayed for others. */
typedef struct CorePrefillAttention {
  const void* q;             /* bfloat16 [tokens, heads * head_dim], rows q_stride apart */
  const int32_t* tables;     /* [rows, max_blocks] block tables */
  const int32_t* table_rows; /* the row of each sequence's table */
  const int32_t* firsts;     /* first row of each sequence, then the end of the last */
  const int32_t* stored;     /* number of stored tokens of each sequence, including its rows */
  const int32_t* list;       /* [2] the first of the sequences that are computed, and their number */
  void* out;                 /* bfloat16 [tokens, heads * head_dim] */
  const void* sinks;         /* as in CoreDecodeAttention */
  CoreKvBlocks blocks;
  int64_t q_stride;   /* elements, a multiple of 8 */
  int32_t sequences;  /* at least the number in the list; 0: no-op; at most 65535 */
  int32_t rows;       /* at least the rows of the sequences of the list; 0: no-op */
  int32_t heads;      /* a multiple of kv_heads */
  int32_t max_blocks; /* width of the block tables */
  int32_t window;     /* sliding window: position p attends to positions > p - window; 0: none */
  float scale;        /* as in CoreDecodeAttention, like the next */
  float soft_cap;
} CorePrefillAttention;

/* Copy whole blocks within a pool or between pools of the same shape, one of which may be in pinned host memory. A
 * block may consist of several pieces, such as one per layer. No block may be both read and written. */
typedef struct CoreCopyBlocks {
  const void* source;    /* aligned to 16 */
  void* target;          /* aligned to 16 */
  const int32_t* pairs;  /* [count, 2] block numbers: source, target */
  int64_t bytes;         /* per piece; this and the strides are multiples of 16 */
  int64_t source_stride; /* bytes from one block to the next */
  int64_t target_stride;
  int64_t source_piece_stride; /* bytes from one piece of a block to the next */
  int64_t target_piece_stride;
  int32_t count;  /* 0: no-op */
  int32_t pieces; /* per block: 1 ... 65535 */
  int32_t limit;  /* thread blocks, at most, or one for each piece if that is more, so that other kernels run beside it;
                     0: as many as have something to copy */
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
