// The entry points of core_device_rows.h: check, enqueue, return.
#include "core_device.h"
#include "cuda/checks_coded.h"
#include "cuda/checks_rows.h"
#include "cuda/ops.h"

namespace {

// Enqueues an op after everything that can be known about the call has been checked.
template <typename Args>
CoreStatus checked(const Args* args, CoreStatus (*op)(const Args&, Stream), void* stream) {
  if (args == nullptr) return core::status(CORE_NULL_POINTER, 0);
  CoreStatus status = core::check_scalars(*args);
  if (status == CORE_OK && args->rows != 0) status = core::check_buffers(*args);
  return status == CORE_OK ? op(*args, static_cast<Stream>(stream)) : status;
}

}  // namespace

CoreStatus core_quantize_rows(const CoreQuantizeRows* args, void* stream) {
  return checked(args, core::quantize_rows, stream);
}

CoreStatus core_rms_norm_codes(const CoreRmsNormCodes* args, void* stream) {
  return checked(args, core::rms_norm_codes, stream);
}

CoreStatus core_gated_rows(const CoreGatedRows* args, void* stream) {
  return checked(args, core::gated_rows, stream);
}

CoreStatus core_scaled_sums(const CoreScaledSums* args, void* stream) {
  return checked(args, core::scaled_sums, stream);
}

CoreStatus core_gather_rows(const CoreGatherRows* args, void* stream) {
  return checked(args, core::gather_rows, stream);
}

CoreStatus core_sample_rows(const CoreSampleRows* args, void* stream) {
  return checked(args, core::sample_rows, stream);
}

CoreStatus core_coded_linear(const CoreCodedLinear* args, void* stream) {
  return checked(args, core::coded_linear, stream);
}

CoreStatus core_coded_rows(const CoreCodedRows* args, void* stream) {
  return checked(args, core::coded_rows, stream);
}
