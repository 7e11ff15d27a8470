// Sampling of a token from each row of logits: changes, cuts, sampling, logprobs. One block per row.
#include <cstdint>

#include "common/status.h"
#include "core_device.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/sampling/changes.h"
#include "cuda/sampling/choose_token.h"
#include "cuda/sampling/cuts.h"
#include "cuda/sampling/logprobs.h"

namespace core {
namespace {

constexpr int64_t kLogitsOfThread = 8;

// The logprobs of a row.
template <typename T>
__device__ double logprob_of(const CoreSampleRows& args, const Logits<T>& own, const Peak& peak, int32_t token,
                             SampleShared& shared) {
  const int64_t row = blockIdx.x;
  const CoreSampling& sampling = args.sampling[row];
  const auto count = static_cast<int32_t>(min(static_cast<int64_t>(sampling.top_logprobs), own.count));
  if (sampling.logprobs == 0 && count == 0) return 0.0;
  const double total = log_sum(own, peak.logit);
  if (count > 0) {
    const int64_t first = row * CORE_TOP_LOGPROBS;
    put_top(own, {args.top_ids + first, args.top_logprobs + first, count, total}, peak.mine, shared);
  }
  return sampling.logprobs != 0 ? static_cast<double>(own.at(token)) - total : 0.0;
}

template <typename T>
__device__ CoreSampled sampled_row(const CoreSampleRows& args, SampleShared& shared) {
  const int64_t row = blockIdx.x, vocab = args.vocab;
  const CoreSampling& sampling = args.sampling[row];
  const Logits<T> own = {static_cast<const T*>(args.logits) + row * vocab, nullptr, vocab};
  const Peak own_peak = peak_of(own);
  if (!own_peak.finite) return {0.0, -1, 0};
  Logits<T> logits = own;
  Peak peak = own_peak;
  if (sampling.changes != nullptr) {
    float* scratch = args.scratch + row * vocab;
    change_logits(*sampling.changes, own.own, vocab, scratch);
    logits.changed = scratch;
    peak = peak_of(logits);
  }
  if (peak.logit == kNothing) return {0.0, -1, 1};
  const bool greedy = sampling.temperature == 0 || sampling.top_k == 1;
  const int32_t token = greedy ? peak.id : draw(logits, sampling, peak, shared);
  return {logprob_of(args, own, own_peak, token, shared), token, 1};
}

template <typename T>
__global__ void __launch_bounds__(kSampleThreads) sample_rows_kernel(const __grid_constant__ CoreSampleRows args) {
  SHARED_ARRAY(SampleShared, shared, 1);
  begin_kernel();
  const CoreSampled sampled = sampled_row<T>(args, shared[0]);
  if (threadIdx.x == 0) args.sampled[blockIdx.x] = sampled;
}

}  // namespace

CoreStatus sample_rows(const CoreSampleRows& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  const dim3 rows(args.rows), threads = whole_warps(args.vocab / kLogitsOfThread, kSampleThreads);
  return device_status(by_dtype(args.dtype, [&](auto zero) {
    return launch_early(sample_rows_kernel<decltype(zero)>, rows, threads, 0, stream, args);
  }));
}

}  // namespace core
