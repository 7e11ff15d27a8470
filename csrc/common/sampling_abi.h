// Facts of the structs that say how rows are drawn, which programs and the ops of devices share.
#pragma once

#include "common/abi.h"
#include "core_sampling.h"

#define SAMPLING_FACTS                                                                                                 \
  RECORD(CoreLogitChanges), FIELD(CoreLogitChanges, penalized), FIELD(CoreLogitChanges, penalties),                    \
      FIELD(CoreLogitChanges, biased), FIELD(CoreLogitChanges, biases), FIELD(CoreLogitChanges, masked),               \
      FIELD(CoreLogitChanges, allowed), FIELD(CoreLogitChanges, repetition), FIELD(CoreLogitChanges, penalized_count), \
      FIELD(CoreLogitChanges, biased_count), FIELD(CoreLogitChanges, masked_count),                                    \
      FIELD(CoreLogitChanges, allowed_words), RECORD(CoreSampling), FIELD(CoreSampling, temperature),                  \
      FIELD(CoreSampling, top_p), FIELD(CoreSampling, min_p), FIELD(CoreSampling, seed), FIELD(CoreSampling, changes), \
      FIELD(CoreSampling, top_k), FIELD(CoreSampling, position), FIELD(CoreSampling, index),                           \
      FIELD(CoreSampling, logprob), FIELD(CoreSampling, top_logprobs), RECORD(CoreSampled),                            \
      FIELD(CoreSampled, logprob), FIELD(CoreSampled, token), FIELD(CoreSampled, finite)
