/* The API of core_cpu: packed weights, and programs, which are sequences of ops recorded once and replayed with one
 * call per step.
 *
 * Activations are float32 [rows, width] in a workspace that the program owns; ops refer to them by CoreValue. The
 * number of rows comes from the batch, so one program serves every batch.
 * Functions return a CoreStatus (core.h); for argument errors its detail is 1 + the field's offset in its struct.
 *
 * Ownership: the caller owns CoreCpu, CoreProgram and all memory from core_cpu_allocate (weights, KV pools). Programs
 * keep pointers to these, to biases, norm weights and cos/sin tables; all must outlive the program. Structs passed to a
 * function, and the arrays of a CoreBatch, are read only during the call.
 */
#ifndef HEADRACE_CORE_PROGRAM_H_
#define HEADRACE_CORE_PROGRAM_H_

#include "core.h"
#include "core_sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- threads and instruction sets ---- */

/* Instruction sets that kernels are compiled for; each includes the previous ones, except AVX2_VNNI. */
typedef enum CoreIsa {
  CORE_ISA_NONE = 0,        /* as an option: the best available; as a result: no AVX2 */
  CORE_ISA_AVX2 = 1,        /* AVX2, FMA, F16C */
  CORE_ISA_AVX2_VNNI = 2,   /* with AVX-VNNI: VNNI in registers of 256 bits */
  CORE_ISA_AVX512 = 3,      /* AVX512 F, BW, VL, DQ */
  CORE_ISA_AVX512_VNNI = 4, /* with VNNI */
  CORE_ISA_AVX512_BF16 = 5, /* with BF16 */
  CORE_ISA_AMX = 6,         /* with AMX tiles of BF16 and INT8 */
} CoreIsa;

typedef struct CoreCpu CoreCpu; /* a pool of threads, with the kernels for their instruction set */

typedef struct CoreCpuOptions {
  const int32_t* cpus;  /* [threads] the logical CPU of each thread; null: threads are not pinned */
  const int32_t* nodes; /* [threads] the memory node of each thread, numbered from 0 without gaps, 0 for the first
                           thread; null: one node */
  int32_t threads;      /* 1 ... 1024; the thread that calls core_program_run is the first */
  int32_t isa;          /* CoreIsa */
} CoreCpuOptions;

/* Return the best CoreIsa that both the CPU and the operating system support. */
CORE_API int32_t core_cpu_best_isa(void);
/* Return 1 if both support a CoreIsa, else 0. */
CORE_API int32_t core_cpu_has_isa(int32_t isa);
/* Start the threads. The caller owns *cpu, and destroys it after all programs that use it. */
CORE_API CoreStatus core_cpu_create(const CoreCpuOptions* options, CoreCpu** cpu);
CORE_API void core_cpu_destroy(CoreCpu* cpu); /* null does nothing */
CORE_API int32_t core_cpu_isa(const CoreCpu* cpu);
/* Return the number of jobs finished since creation; grows while a program runs. Safe to call from any thread. */
CORE_API int64_t core_cpu_progress(const CoreCpu* cpu);

/* Allocate zeroed memory, aligned to 2 MiB, in huge pages if available; null if out of memory. */
CORE_API void* core_cpu_allocate(int64_t bytes);
CORE_API void core_cpu_free(void* memory); /* null does nothing */
/* Fault in the pages of `bytes` bytes of unused memory at place + n * stride from threads of node n, for each node n,
 * so that the system allocates them on that node. */
CORE_API CoreStatus core_cpu_touch(CoreCpu* cpu, void* place, int64_t bytes, int64_t stride);
/* Return the number of allocations since the library was loaded; constant once models are warm. */
CORE_API int64_t core_cpu_allocations(void);

/* ---- ranks ---- */

/* Memory that the ranks of a model share, and exchange parts of activations in. Each rank has a CoreExchange of its own
 * on the same file. All make the same exchanges in the same order. */
typedef struct CoreExchange CoreExchange;

typedef struct CoreExchangeOptions {
  int64_t part_bytes; /* at most what one rank gives to one exchange: core_program_part_bytes */
  int32_t file;       /* descriptor of the file, core_exchange_bytes() of zeros; not needed after core_exchange_open */
  int32_t rank;       /* 0 ... ranks - 1 */
  int32_t ranks;      /* 2 ... 64 */
} CoreExchangeOptions;

/* Return the bytes of the file; 0 if the options are invalid. */
CORE_API int64_t core_exchange_bytes(const CoreExchangeOptions* options);
/* Map the file. The caller owns *exchange, and closes it after all programs that have joined it. */
CORE_API CoreStatus core_exchange_open(const CoreExchangeOptions* options, CoreExchange** exchange);
CORE_API void core_exchange_close(CoreExchange* exchange); /* null does nothing */
/* End the exchanges of all ranks, also those in progress, since one of them is gone: runs return CORE_RANK_LOST from
 * now on. Safe to call from any thread. */
CORE_API void core_exchange_leave(CoreExchange* exchange);

/* ---- weights ---- */

/* Storage of a matrix. INT8 and INT4 hold codes, in groups along the inputs: weight = scale * (value - zero) + offset,
 * where value is the code or, with a codebook, codebook[code]. */
typedef enum CoreFormat {
  CORE_FORMAT_FLOAT32 = 1,
  CORE_FORMAT_BFLOAT16 = 2,
  CORE_FORMAT_FLOAT16 = 3,
  CORE_FORMAT_INT8 = 4,
  CORE_FORMAT_INT4 = 5,
} CoreFormat;

/* A matrix, packed for this library. The caller owns data; only core_weight_pack writes it, and its layout is specific
 * to core_weight_version(). */
typedef struct CoreWeight {
  const void* data; /* core_weight_bytes() bytes per shard, aligned to 64; of the first shard */
  int64_t outputs;  /* rows of the matrix */
  int64_t inputs;   /* columns */
  int32_t format;   /* CoreFormat */
  int32_t group;    /* inputs per scale: 16, 32, 64 or 128, or 0: all inputs; float formats: 0 */
  int32_t scales;   /* CoreDtype of scales and offsets: float32 or float16; float formats: 0 */
  int32_t offsets;  /* 1: groups have offsets, 0: none */
  int32_t zero;     /* zero point of the codes: 0 ... 255 */
  int32_t codebook; /* 1: INT4 through the table below; 0: the code is its own value */
  int64_t stride;   /* bytes from the start of one shard to the next, a multiple of 64 */
  int32_t shards;   /* memory nodes that hold equal parts of the rows, the last one the rest; 0: not sharded */
  float values[16]; /* the codebook */
} CoreWeight;

/* Arguments of core_weight_pack, which packs rows first_row ... first_row + rows - 1. */
typedef struct CorePack {
  const CoreWeight* weight; /* its data is written */
  const void* rows_data;    /* [rows, inputs] in the float format, or one code per byte */
  const float* row_scales;  /* [rows, groups] */
  const float* row_offsets; /* [rows, groups]; null if and only if weight has no offsets */
  int64_t first_row;        /* a multiple of 64 */
  int64_t rows;             /* a multiple of 64, or up to the last row */
} CorePack;

/* Return the version of the packed layout; weights packed with another version must be packed again. */
CORE_API int32_t core_weight_version(void);
/* Return the bytes that each shard's data needs; 0 if the description is invalid. */
CORE_API int64_t core_weight_bytes(const CoreWeight* weight);
/* Pack rows on all threads. The memory need not be zeroed. */
CORE_API CoreStatus core_weight_pack(CoreCpu* cpu, const CorePack* pack);
/* Write one dequantized row of the matrix as float32 [inputs]. Kernels compute with these values, up to rounding. */
CORE_API CoreStatus core_weight_row(const CoreWeight* weight, int64_t row, float* values);

/* ---- programs ---- */

typedef struct CoreProgram CoreProgram;

/* Number of rows of a value. */
typedef enum CoreRows {
  CORE_ROWS_TOKENS = 1, /* one per token of the batch */
  CORE_ROWS_LOGITS = 2, /* one per logits row of the batch */
} CoreRows;

/* Activations, float32 [rows, width]. */
typedef struct CoreValue {
  int64_t offset; /* of the first float in the workspace, in floats, a multiple of 16 */
  int32_t width;  /* floats per row, contiguous */
  int32_t rows;   /* CoreRows */
} CoreValue;

/* Limits of a program's batches, and the dimensions of its model. */
typedef struct CoreShape {
  int64_t workspace;  /* size in floats */
  int32_t max_tokens; /* per batch, as are the next two */
  int32_t max_sequences;
  int32_t max_logits;    /* logits rows */
  int32_t max_positions; /* per sequence */
  int32_t layers;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;   /* a multiple of 16 */
  int32_t block_size; /* tokens per block, a multiple of 16 */
  int32_t kv;         /* CoreKv */
  int32_t vocab;
  int32_t adapters; /* sequences may name adapters 1 ... adapters; 0: none */
  int32_t rank;     /* number of this rank, if several compute the model; heads and kv_heads are its own */
  int32_t ranks;    /* number of ranks; 0 or 1: one */
} CoreShape;

/* Embedding: out[i] = table row of token i. A rank holds table->outputs rows, and writes those of its own tokens. */
typedef struct CoreEmbed {
  const CoreWeight* table;
  CoreValue out;
} CoreEmbed;

/* out = rms_norm(sum) * weight, where sum = x + residual, also stored in residual_out, or without a residual sum = x.
 */
typedef struct CoreNorm {
  const float* weight; /* [width] */
  CoreValue x;
  CoreValue residual;     /* width 0: none */
  CoreValue residual_out; /* may be residual */
  CoreValue out;
  float eps;
} CoreNorm;

/* LayerNorm of each row: out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias. */
typedef struct CoreLayerNorm {
  const float* weight; /* [width] */
  const float* bias;   /* [width]; null: none */
  CoreValue x;
  CoreValue out; /* may be x */
  float eps;
} CoreLayerNorm;

/* Precision of the activations in products with integer weights. */
typedef enum CoreActivations {
  CORE_ACTIVATIONS_FULL = 1, /* no loss beyond bfloat16 rounding */
  CORE_ACTIVATIONS_INT8 = 2, /* quantized to 8 bits with one scale per row */
} CoreActivations;

/* out = x * weight^T + bias. */
typedef struct CoreProjection {
  const CoreWeight* weight;
  const float* bias; /* [outputs]; null: none */
  CoreValue out;
} CoreProjection;

/* Up to three projections of the same x. */
typedef struct CoreLinear {
  CoreValue x;
  CoreProjection projections[3];
  int32_t count;
  int32_t activations; /* CoreActivations */
} CoreLinear;

/* What an adapter adds to one product: out += x * a^T * b. */
typedef struct CoreLowRank {
  const float* a; /* [rank, inputs] */
  const float* b; /* [rank, outputs], scaled */
  int32_t rank;   /* 0: nothing is added */
} CoreLowRank;

/* A product of x that adapters change. */
typedef struct CoreAdapted {
  const CoreLowRank* adapters; /* [CoreShape.adapters], read during each run */
  CoreValue out;               /* changed in the rows of sequences that name an adapter */
} CoreAdapted;

/* Up to three products of the same x, right after they are computed. A row's result depends on no other row. */
typedef struct CoreAdapt {
  CoreValue x;
  CoreValue hidden; /* scratch: x * a^T, [rows, count * rank] */
  CoreAdapted products[3];
  int32_t count;
  int32_t rank; /* at least that of each adapter */
} CoreAdapt;

/* Apply RMSNorm to each head of queries and keys, if there are weights for it; apply RoPE; and append keys and values
 * to the blocks of their sequences. The first rotary_dim entries of each head are rotated: entry i is paired with entry
 * i + rotary_dim / 2. Queries may be scaled by position. */
typedef struct CoreRopeAppend {
  const float* cos;    /* [max_positions, rotary_dim / 2] */
  const float* sin;    /* [max_positions, rotary_dim / 2] */
  const float* q_norm; /* [head_dim], RMSNorm of each head of queries; null: none */
  const float* k_norm; /* [head_dim]; null: none */
  const float* scales; /* [max_positions] factors of queries; null: none */
  CoreValue q;
  CoreValue k;
  CoreValue v;
  CoreValue q_out;    /* may be q */
  int32_t rotary_dim; /* even, at most head_dim; 0: no rotation, and cos and sin may be null */
  int32_t layer;
  float eps; /* of the norms */
} CoreRopeAppend;

/* Causal attention of each row over its sequence, including its own key. */
typedef struct CoreAttention {
  const float* sinks; /* [heads] for each a score beside those of its keys, whose weight no value has; null: none */
  CoreValue q;
  CoreValue out;
  int32_t layer;
  int32_t window; /* sliding window: position p attends to positions > p - window; 0: none */
  float scale;    /* multiplies the products of queries and keys */
  float soft_cap; /* scores become soft_cap * tanh(score / soft_cap); 0: unchanged */
} CoreAttention;

/* out = activation(gate) * up, element by element, or activation(gate). Appended right after the CoreLinear that
 * computes gate and up, it may be fused with it; gate and up are then not written. */
typedef struct CoreGated {
  CoreValue gate;
  CoreValue up;       /* width 0: none, which counts as 1; not with CORE_GATE_CLAMPED */
  CoreValue out;      /* may be gate or up */
  int32_t activation; /* CoreGate */
} CoreGated;

/* out = scale * x, or soft_cap * tanh(scale * x / soft_cap), plus added, element by element. */
typedef struct CoreScaled {
  CoreValue x;
  CoreValue added; /* width 0: none */
  CoreValue out;   /* may be x or added */
  float scale;
  float soft_cap; /* 0: none */
} CoreScaled;

/* An exchange. out = the columns of the parts of all ranks, one after the other: what they hold beyond the width of out
 * is padding. With table_rows, row i of out is that of the rank that holds token i of the embedding table. */
typedef struct CoreGather {
  CoreValue part;
  CoreValue out;
  int32_t table_rows; /* of each rank; 0: parts are columns */
} CoreGather;

/* An exchange. out = the sum of the parts of all ranks, in their order. */
typedef struct CoreReduce {
  CoreValue part;
  CoreValue out; /* may be part */
} CoreReduce;

/* out = columns first ... first + out.width - 1 of x. */
typedef struct CoreColumns {
  CoreValue x;
  CoreValue out;
  int32_t first;
} CoreColumns;

/* One expert of a mixture. A null bias is none. On one of several ranks, all matrices have some of their outputs; the
 * ranks exchange those of the gates. */
typedef struct CoreExpert {
  CoreWeight gate;        /* [width, hidden] */
  CoreWeight up;          /* [width, hidden] */
  CoreWeight down;        /* [hidden, width]; the width of all ranks */
  const float* gate_bias; /* [width] */
  const float* up_bias;   /* [width] */
  const float* down_bias; /* [hidden] */
} CoreExpert;

/* out = the sum of the outputs of each row's experts times their weights, plus what is shared. A row's experts are the
 * `used` ones with its highest scores, of equal ones the first; their weights are softmax over all scores, or with
 * `sigmoid` the sigmoids of theirs, divided by their sum if `normalised`, times the scale. With a correction, experts
 * are compared by these weights before any division plus the correction. Experts stand in groups of the same size, and
 * a row's are those of `groups_used` groups alone: of the groups with the highest numbers that experts are compared
 * by, or with a correction with the highest sums of two of these; of equal ones the first. With a mixer_threshold, the
 * weight of each, of score m, is softmax over m and those scores s of experts not chosen before it of which (m - s) /
 * max(|s|, m) is at most the threshold. The result of a row with a score that is no number is none either. An expert's
 * output is down * (activation(gate * x) * up * x), each product with its bias. Weights of an expert that no row of the
 * step uses are not read. */
typedef struct CoreExperts {
  const CoreExpert* experts; /* [count]; must outlive the program. The same storage for each: shapes, formats, groups */
  CoreValue x;
  CoreValue scores; /* width count */
  CoreValue shared; /* as out; width 0: none */
  CoreValue score;  /* width 1: shared is multiplied by its sigmoid; width 0: it is not */
  CoreValue out;    /* may be none of the others */
  int32_t count;
  int32_t used;
  int32_t normalised;    /* 1: the weights of a row's experts are divided by their sum */
  int32_t activation;    /* CoreGate */
  int32_t activations;   /* CoreActivations */
  float mixer_threshold; /* 0: none */
  int32_t sigmoid;       /* 1: sigmoids of scores in place of softmax */
  float scale;
  const float* correction; /* [count]; null: none */
  int32_t groups;          /* divides count */
  int32_t groups_used;     /* they have at least `used` experts */
} CoreExperts;

/* out = the logits rows of x (CoreBatch.wanted). */
typedef struct CoreSelect {
  CoreValue x;
  CoreValue out;
} CoreSelect;

/* Sample a token from each row of logits (CoreSampling). */
typedef struct CoreSample {
  CoreValue logits;
} CoreSample;

/* Create an empty program. The caller owns *program. */
CORE_API CoreStatus core_program_create(CoreCpu* cpu, const CoreShape* shape, CoreProgram** program);
CORE_API void core_program_destroy(CoreProgram* program); /* null does nothing */
/* The ops, with the struct that each takes. core_program_embed(program, &embed) appends a CoreEmbed, and so on. Ops
 * copy the struct and its CoreWeight descriptions, but not the data that these point to. */
#define CORE_PROGRAM_OPS(OP)      \
  OP(embed, CoreEmbed)            \
  OP(norm, CoreNorm)              \
  OP(layer_norm, CoreLayerNorm)   \
  OP(linear, CoreLinear)          \
  OP(adapt, CoreAdapt)            \
  OP(rope_append, CoreRopeAppend) \
  OP(attention, CoreAttention)    \
  OP(gated, CoreGated)            \
  OP(scaled, CoreScaled)          \
  OP(gather, CoreGather)          \
  OP(reduce, CoreReduce)          \
  OP(columns, CoreColumns)        \
  OP(experts, CoreExperts)        \
  OP(select, CoreSelect)          \
  OP(sample, CoreSample)
#define CORE_DECLARE_PROGRAM_OP(op, Args) CORE_API CoreStatus core_program_##op(CoreProgram* program, const Args* args);
CORE_PROGRAM_OPS(CORE_DECLARE_PROGRAM_OP)
#undef CORE_DECLARE_PROGRAM_OP

/* Return the bytes of the workspace, including the kernels' scratch buffers, for the largest batch; and the bytes of
 * one KV block over all layers. */
CORE_API int64_t core_program_workspace_bytes(const CoreProgram* program);
CORE_API int64_t core_program_block_bytes(const CoreProgram* program);
/* Allocate the workspace and set the KV pool, num_blocks blocks from core_cpu_allocate. The pool stays the caller's
 * and must outlive the program or the next bind. May be called again with another pool. */
CORE_API CoreStatus core_program_bind(CoreProgram* program, void* pool, int64_t num_blocks);
/* Return the most bytes that this rank gives to one exchange; 0 if there are none. */
CORE_API int64_t core_program_part_bytes(const CoreProgram* program);
/* Set where the program makes its exchanges, which it shares with other programs of the rank. */
CORE_API CoreStatus core_program_join(CoreProgram* program, CoreExchange* exchange);
/* Write the keys (values = 0) or values (1) of one token in one layer as float32 [kv_heads, head_dim]. For tests. */
CORE_API CoreStatus core_program_kv(const CoreProgram* program, int32_t layer, int32_t values, int32_t block,
                                    int32_t slot, float* out);
/* Return a value after a run, [rows, width]: a pointer into the program's workspace, which the next run overwrites. */
CORE_API const float* core_program_value(const CoreProgram* program, const CoreValue* value);

/* ---- one step ---- */

/* The rows of one sequence. They follow the rows of the previous sequence of the batch. */
typedef struct CoreSequence {
  const int32_t* blocks; /* block table: position p is slot p % block_size of blocks[p / block_size] */
  int32_t length;        /* rows, at least 1 */
  int32_t start;         /* position of the first row */
  int32_t adapter;       /* number of its adapter, from 1; 0: none */
} CoreSequence;

typedef struct CoreBatch {
  const int32_t* token_ids;      /* [tokens] */
  const CoreSequence* sequences; /* [num_sequences] */
  const int32_t* wanted;         /* [num_logits] logits rows, in ascending order */
  const CoreSampling* sampling;  /* [num_logits] */
  CoreSampled* sampled;          /* [num_logits], written */
  int32_t* top_ids;              /* [num_logits, CORE_TOP_LOGPROBS] most likely first, ties by lowest id; the first
                                    CoreSampling.top_logprobs, at most vocab, of each row are written; null if no row
                                    requests any */
  double* top_logprobs;          /* likewise; log-softmax of the unmodified logits */
  int32_t num_tokens;
  int32_t num_sequences;
  int32_t num_logits;
} CoreBatch;

/* Run all ops on the batch, on all threads of the CoreCpu, and return when the step is done. A CoreCpu does one thing
 * at a time: runs, core_weight_pack and core_cpu_touch must not overlap. */
CORE_API CoreStatus core_program_run(CoreProgram* program, const CoreBatch* batch);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_PROGRAM_H_ */
