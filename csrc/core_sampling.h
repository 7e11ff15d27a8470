/* Sampling of tokens from rows of logits: structs common to programs (core_program.h) and device ops
 * (core_device_rows.h). */
#ifndef HEADRACE_CORE_SAMPLING_H_
#define HEADRACE_CORE_SAMPLING_H_

#include <stdint.h>

typedef enum CoreLimit {
  CORE_TOP_LOGPROBS = 20, /* maximum number of top logprobs of a row */
} CoreLimit;

/* Changes to a row of logits before top-k, top-p and min-p. Ids outside the vocabulary are ignored. Logits stay finite,
 * except that those of ids that may not be sampled become -inf. */
typedef struct CoreLogitChanges {
  const int32_t* penalized; /* [penalized_count] ids, each once */
  const double* penalties;  /* [penalized_count] subtracted from their logits, after the repetition penalty */
  const int32_t* biased;    /* [biased_count] ids, each once */
  const double* biases;     /* [biased_count] added to their logits */
  const int32_t* masked;    /* [masked_count] ids that may not be sampled */
  const uint32_t* allowed;  /* [allowed_words] bit mask of ids that may be sampled, lowest bit first; null: all */
  float repetition;         /* repetition penalty: multiplies negative logits of penalized ids, divides others */
  int32_t penalized_count;
  int32_t biased_count;
  int32_t masked_count;
  int32_t allowed_words;
} CoreLogitChanges;

/* Sampling parameters of one row of logits. */
typedef struct CoreSampling {
  double temperature; /* 0: greedy */
  double top_p;
  double min_p;
  uint64_t seed;
  const CoreLogitChanges* changes; /* null: none */
  int32_t top_k;                   /* 0: all */
  int32_t position;                /* counter of the random numbers */
  int32_t index;                   /* counter of the random numbers */
  int32_t logprobs;                /* 1: compute the token's logprob */
  int32_t top_logprobs;            /* number of most likely ids to return, at most CORE_TOP_LOGPROBS */
} CoreSampling;

/* Result of sampling from one row. */
typedef struct CoreSampled {
  double logprob; /* log-softmax of the unmodified logits at the token; 0 unless requested */
  int32_t token;  /* -1: no id may be sampled, or the row is not finite */
  int32_t finite; /* 0: some logit is not finite */
} CoreSampled;

#endif /* HEADRACE_CORE_SAMPLING_H_ */
