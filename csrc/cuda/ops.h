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

}  // namespace core
