/* How tokens are drawn from rows of logits: what programs (core_program.h) and the ops of devices (core_device_rows.h)
 * share. */
#ifndef HEADRACE_CORE_SAMPLING_H_
#define HEADRACE_CORE_SAMPLING_H_

#include <stdint.h>

typedef enum CoreLimit {
  CORE_TOP_LOGPROBS = 20, /* entries of a row's list of most likely ids */
} CoreLimit;

/* What is done to a row of logits before the cuts. Ids outside the vocabulary are passed over; no logit becomes
 * infinite but those of ids that may not be drawn. */
typedef struct CoreLogitChanges {
  const int32_t* penalized; /* [penalized_count] ids, each once */
  const double* penalties;  /* [penalized_count] taken from their logits, after the repetition penalty */
  const int32_t* biased;    /* [biased_count] ids, each once */
  const double* biases;     /* [biased_count] added to their logits */
  const int32_t* masked;    /* [masked_count] ids that may not be drawn */
  const uint32_t* allowed;  /* [allowed_words] one bit an id, the lowest first, of ids that may; null: all may */
  float repetition;         /* multiplies negative logits of penalized ids, and divides the others */
  int32_t penalized_count;
  int32_t biased_count;
  int32_t masked_count;
  int32_t allowed_words;
} CoreLogitChanges;

/* How to draw from one row of logits. */
typedef struct CoreSampling {
  double temperature; /* 0: the most likely id */
  double top_p;
  double min_p;
  uint64_t seed;
  const CoreLogitChanges* changes; /* null: none */
  int32_t top_k;                   /* 0: all */
  int32_t position;                /* counter of the random numbers */
  int32_t index;                   /* counter of the random numbers */
  int32_t logprobs;                /* 1: the token's log-probability is wanted */
  int32_t top_logprobs;            /* how many of the row's own most likely ids are wanted, at most CORE_TOP_LOGPROBS */
} CoreSampling;

typedef struct CoreSampled {
  double logprob; /* log-softmax of the row's own logits at the token; 0 unless wanted */
  int32_t token;  /* -1: no id may be drawn, or the row is not finite */
  int32_t finite; /* 0: some logit is not finite */
} CoreSampled;

#endif /* HEADRACE_CORE_SAMPLING_H_ */
