// The launchers of the CUDA library. Arguments have been checked; each enqueues and returns a status.
#pragma once

#include "core_device.h"
#include "cuda/device.h"

namespace core {

CoreStatus rms_norm(const CoreRmsNorm& args, Stream stream);

CoreStatus append_kv(const CoreAppendKv& args, Stream stream);
CoreStatus decode_attention(const CoreDecodeAttention& args, Stream stream);
CoreStatus prefill_attention(const CorePrefillAttention& args, Stream stream);
CoreStatus copy_blocks(const CoreCopyBlocks& args, Stream stream);

CoreStatus quantize_rows(const CoreQuantizeRows& args, Stream stream);
CoreStatus rms_norm_codes(const CoreRmsNormCodes& args, Stream stream);
CoreStatus gated_rows(const CoreGatedRows& args, Stream stream);
CoreStatus scaled_sums(const CoreScaledSums& args, Stream stream);
CoreStatus gather_rows(const CoreGatherRows& args, Stream stream);
CoreStatus coded_linear(const CoreCodedLinear& args, Stream stream);
CoreStatus coded_rows(const CoreCodedRows& args, Stream stream);
CoreStatus sample_rows(const CoreSampleRows& args, Stream stream);

}  // namespace core
