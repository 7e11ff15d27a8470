/* What core_cpu exports beside core.h: packed weights, and programs of ops that are recorded once and replayed as one
 * call a step.
 *
 * Activations are float32, [rows, width], in a workspace that the program owns: an op names them by CoreValue. The
 * number of rows is one of the batch's own numbers, so that one program serves every batch.
 * Functions return a CoreStatus of core.h; the detail of an argument's code is 1 + the field's offset in its struct.
 */
#ifndef HEADRACE_CORE_PROGRAM_H_
#define HEADRACE_CORE_PROGRAM_H_

#include "core.h"
#include "core_sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- threads and instruction sets ---- */

/* Instruction sets that kernels are compiled for; each contains the ones before it. */
typedef enum CoreIsa {
  CORE_ISA_NONE = 0,        /* as an option: the best that the machine has; as an answer: not even AVX2 */
  CORE_ISA_AVX2 = 1,        /* AVX2, FMA, F16C */
  CORE_ISA_AVX512 = 2,      /* AVX512 F, BW, VL, DQ, VNNI */
  CORE_ISA_AVX512_BF16 = 3, /* with BF16 */
  CORE_ISA_AMX = 4,         /* with AMX tiles of BF16 and INT8 */
} CoreIsa;

typedef struct CoreCpu CoreCpu; /* a pool of threads, and the kernels that they run */

typedef struct CoreCpuOptions {
  const int32_t* cpus;  /* [threads] the logical CPU of each thread; null: the system places them */
  const int32_t* nodes; /* [threads] the memory node of each thread, numbers from 0 without gaps, that of the first
                           thread 0; null: all threads are of one */
  int32_t threads;      /* 1 ... 1024; the caller of core_program_run is the first */
  int32_t isa;          /* CoreIsa */
} CoreCpuOptions;

/* The best instruction set of this machine, as its CPU and its operating system say. */
CORE_API int32_t core_cpu_best_isa(void);
CORE_API CoreStatus core_cpu_create(const CoreCpuOptions* options, CoreCpu** cpu);
CORE_API void core_cpu_destroy(CoreCpu* cpu); /* null does nothing */
CORE_API int32_t core_cpu_isa(const CoreCpu* cpu);
/* Jobs that its threads have finished since it was created: grows while a program runs. Any thread may ask. */
CORE_API int64_t core_cpu_progress(const CoreCpu* cpu);

/* Zeroed memory in huge pages where the system has them, aligned to 2 MiB; null where there is none. */
CORE_API void* core_cpu_allocate(int64_t bytes);
CORE_API void core_cpu_free(void* memory); /* null does nothing */
/* Writes a zero to each page of `bytes` bytes of unused memory at place + n * stride, by threads of node n: so the
 * system takes them from that node. */
CORE_API CoreStatus core_cpu_touch(CoreCpu* cpu, void* place, int64_t bytes, int64_t stride);
/* How often this library has allocated since it was loaded: stands still once models are warm. */
CORE_API int64_t core_cpu_allocations(void);

/* ---- weights ---- */

/* Storage of a matrix. INT8 and INT4 hold codes in groups along the inputs: weight = scale * (value - zero) + offset,
 * where value is the code, or codebook[code] where there is a codebook. */
typedef enum CoreFormat {
  CORE_FORMAT_FLOAT32 = 1,
  CORE_FORMAT_BFLOAT16 = 2,
  CORE_FORMAT_FLOAT16 = 3,
  CORE_FORMAT_INT8 = 4,
  CORE_FORMAT_INT4 = 5,
} CoreFormat;

/* A matrix, packed for this library. Only core_weight_pack writes what data points to, and only this version of the
 * library reads it: see core_weight_version. */
typedef struct CoreWeight {
  const void* data; /* core_weight_bytes() bytes, aligned to 64; of shards, those of the first */
  int64_t outputs;  /* rows of the matrix */
  int64_t inputs;   /* columns */
  int32_t format;   /* CoreFormat */
  int32_t group;    /* inputs that share a scale: 16, 32, 64 or 128, or 0: all inputs; float formats: 0 */
  int32_t scales;   /* CoreDtype of scales and offsets: float32 or float16; float formats: 0 */
  int32_t offsets;  /* 1: groups have offsets too, 0: none */
  int32_t zero;     /* of the codes: 0 ... 255 */
  int32_t codebook; /* 1: INT4 through the table below; 0: the code is its own value */
  int64_t stride;   /* bytes from the begin of one shard to that of the next, a multiple of 64 */
  int32_t shards;   /* memory nodes that hold equal parts of the rows, the last one what is left; 0: one holds all */
  float values[16]; /* the codebook */
} CoreWeight;

/* What core_weight_pack packs: rows first_row ... first_row + rows - 1. */
typedef struct CorePack {
  const CoreWeight* weight; /* data is written */
  const void* rows_data;    /* [rows, inputs] in the storage of a float format, or one code a byte */
  const float* row_scales;  /* [rows, groups] */
  const float* row_offsets; /* [rows, groups]; null exactly where weight has none */
  int64_t first_row;        /* a multiple of 64 */
  int64_t rows;             /* a multiple of 64, or up to the last row */
} CorePack;

/* Number of the layout in memory: what was packed under another number has to be packed again. */
CORE_API int32_t core_weight_version(void);
/* Bytes that each shard's data needs; 0 where the description is wrong. */
CORE_API int64_t core_weight_bytes(const CoreWeight* weight);
/* Packs on all threads. The memory need not be zeroed. */
CORE_API CoreStatus core_weight_pack(CoreCpu* cpu, const CorePack* pack);
/* One row of the matrix as float32, [inputs]: what every kernel computes with, to its own rounding. */
CORE_API CoreStatus core_weight_row(const CoreWeight* weight, int64_t row, float* values);

/* ---- programs ---- */

typedef struct CoreProgram CoreProgram;

/* Whose number of rows a value has. */
typedef enum CoreRows {
  CORE_ROWS_TOKENS = 1, /* every token of the batch */
  CORE_ROWS_LOGITS = 2, /* every row whose logits are wanted */
} CoreRows;

/* Activations, float32 [rows, width]. */
typedef struct CoreValue {
  int64_t offset; /* of the first float in the workspace, a multiple of 16 */
  int32_t width;  /* floats of a row, stored without gaps */
  int32_t rows;   /* CoreRows */
} CoreValue;

typedef struct CoreShape {
  int64_t workspace;  /* floats of all values */
  int32_t max_tokens; /* of a batch */
  int32_t max_sequences;
  int32_t max_logits;    /* rows whose logits are wanted */
  int32_t max_positions; /* of a sequence */
  int32_t layers;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;   /* a multiple of 16 */
  int32_t block_size; /* tokens of a block, a multiple of 16 */
  int32_t kv;         /* CoreKv */
  int32_t vocab;
} CoreShape;

/* out = the row of the table for each token. */
typedef struct CoreEmbed {
  const CoreWeight* table;
  CoreValue out;
} CoreEmbed;

/* out = rms_norm(sum) * weight, where sum = x + residual is stored in residual_out, or sum = x. */
typedef struct CoreNorm {
  const float* weight; /* [width] */
  CoreValue x;
  CoreValue residual;     /* width 0: none */
  CoreValue residual_out; /* may be residual */
  CoreValue out;
  float eps;
} CoreNorm;

/* How activations enter a product with integer weights. */
typedef enum CoreActivations {
  CORE_ACTIVATIONS_FULL = 1, /* no loss beyond bfloat16's rounding */
  CORE_ACTIVATIONS_INT8 = 2, /* eight bits, one scale a row */
} CoreActivations;

/* out = x * weight^T + bias. */
typedef struct CoreProjection {
  const CoreWeight* weight;
  const float* bias; /* [outputs]; null: none */
  CoreValue out;
} CoreProjection;

/* Up to three projections of one x. */
typedef struct CoreLinear {
  CoreValue x;
  CoreProjection projections[3];
  int32_t count;
  int32_t activations; /* CoreActivations */
} CoreLinear;

/* Rotates queries and keys by position, and appends keys and values to the blocks of their sequences. Entry i of the
 * first half of the rotary_dim leading entries of a head turns with entry i of the second half. */
typedef struct CoreRopeAppend {
  const float* cos; /* [max_positions, rotary_dim / 2] */
  const float* sin; /* [max_positions, rotary_dim / 2] */
  CoreValue q;
  CoreValue k;
  CoreValue v;
  CoreValue q_out;    /* may be q */
  int32_t rotary_dim; /* even, at most head_dim; 0: nothing turns */
  int32_t layer;
} CoreRopeAppend;

/* Causal attention of each row to its own sequence, its own key included. */
typedef struct CoreAttention {
  CoreValue q;
  CoreValue out;
  int32_t layer;
  int32_t window; /* a row at position p attends to positions above p - window; 0: to all */
  float scale;    /* of the products of queries and keys */
  float soft_cap; /* scores become soft_cap * tanh(score / soft_cap); 0: they stay */
} CoreAttention;

/* out = activation(gate) * up, entry by entry. Right after the products that gate and up are, it is one op with them:
 * gate and up are then not written. */
typedef struct CoreGated {
  CoreValue gate;
  CoreValue up;
  CoreValue out;      /* may be gate or up */
  int32_t activation; /* CoreGate */
} CoreGated;

/* out = the rows of x whose logits are wanted. */
typedef struct CoreSelect {
  CoreValue x;
  CoreValue out;
} CoreSelect;

/* Draws a token for each row of logits as CoreSampling says. */
typedef struct CoreSample {
  CoreValue logits;
} CoreSample;

CORE_API CoreStatus core_program_create(CoreCpu* cpu, const CoreShape* shape, CoreProgram** program);
CORE_API void core_program_destroy(CoreProgram* program); /* null does nothing */
/* The ops of a program, and the struct that each takes: core_program_embed(program, &embed) appends one. */
#define CORE_PROGRAM_OPS(OP)      \
  OP(embed, CoreEmbed)            \
  OP(norm, CoreNorm)              \
  OP(linear, CoreLinear)          \
  OP(rope_append, CoreRopeAppend) \
  OP(attention, CoreAttention)    \
  OP(gated, CoreGated)            \
  OP(select, CoreSelect)          \
  OP(sample, CoreSample)
#define CORE_DECLARE_PROGRAM_OP(op, Args) CORE_API CoreStatus core_program_##op(CoreProgram* program, const Args* args);
CORE_PROGRAM_OPS(CORE_DECLARE_PROGRAM_OP)
#undef CORE_DECLARE_PROGRAM_OP

/* Bytes of the workspace and of the kernels' own room, for the largest batch, and of one block of keys and values in
 * all layers. */
CORE_API int64_t core_program_workspace_bytes(const CoreProgram* program);
CORE_API int64_t core_program_block_bytes(const CoreProgram* program);
/* Allocates the workspace, and takes a pool of num_blocks blocks from the caller (core_cpu_allocate); again and again
 * for other pools. */
CORE_API CoreStatus core_program_bind(CoreProgram* program, void* pool, int64_t num_blocks);
/* Keys or values of one token in one layer as float32, [kv_heads, head_dim]: for tests. */
CORE_API CoreStatus core_program_kv(const CoreProgram* program, int32_t layer, int32_t values, int32_t block,
                                    int32_t slot, float* out);
/* Floats of a value after a run, [rows, width]. */
CORE_API const float* core_program_value(const CoreProgram* program, const CoreValue* value);

/* ---- one step ---- */

/* The rows of one sequence: they follow those of the sequence before. */
typedef struct CoreSequence {
  const int32_t* blocks; /* position p lies in blocks[p / block_size] at p % block_size */
  int32_t length;        /* rows, at least 1 */
  int32_t start;         /* position of the first row */
} CoreSequence;

typedef struct CoreBatch {
  const int32_t* token_ids;      /* [tokens] */
  const CoreSequence* sequences; /* [num_sequences] */
  const int32_t* wanted;         /* [num_logits] rows, in ascending order */
  const CoreSampling* sampling;  /* [num_logits] */
  CoreSampled* sampled;          /* [num_logits], written */
  int32_t* top_ids;              /* [num_logits, CORE_TOP_LOGPROBS] most likely first, of equal ones the lowest id;
                                    written as far as a row asks and the vocabulary goes; null where none asks */
  double* top_logprobs;          /* the same of their log-softmax of the row's own logits */
  int32_t num_tokens;
  int32_t num_sequences;
  int32_t num_logits;
} CoreBatch;

/* Runs every op on the batch, on all threads; returns when the step is done. One run at a time. */
CORE_API CoreStatus core_program_run(CoreProgram* program, const CoreBatch* batch);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_PROGRAM_H_ */
