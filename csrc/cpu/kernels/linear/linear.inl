// Products with packed weights. A job is one tile of 64 outputs times up to kRowBlock rows.
//
// Implementation by format and instruction set:
//
//                        avx2, avx512, _vnni   avx512_bf16   amx
//   FLOAT32, FLOAT16     floats                floats        floats
//   BFLOAT16             floats                pairs         pairs for one row, else tiles
//   INT8, a row a group  integers              integers      integers for few rows, else whole
//   other INT8, INT4     integers              integers      integers for few rows, codes for some, else tiles
//   INT4, codebook       integers or floats    likewise      floats for one row, else tiles
//
//   floats    weights converted to float32 a piece at a time, times float32 activations
//   pairs     vdpbf16ps of weights and activations in bfloat16
//   integers  codes, or values of a codebook that are whole numbers, and activations in int16, or those of 8 bits in
//             int8: with VNNI, and with INT4 without a codebook
//   codes     AMX: codes, and activations in planes of int8
//   whole     the same, scaled only after the last input
//   tiles     AMX: weights converted to bfloat16 a piece at a time, times activations in bfloat16
//
// Within one implementation, sums run along the inputs in the same order for any number of rows.

enum Way { kFloats, kPairs, kIntegers, kCodes, kWhole, kTiles };

constexpr int64_t kRowBlock = 256;
constexpr int64_t kFewRows = 2;          // that each thread converts for itself, instead of a phase of its own
constexpr int64_t kMostCodeRows = 16;    // above, scaling each group's products costs more than dequantizing
constexpr int64_t kMostWholeRows = 128;  // likewise, where a row of the matrix is one group
constexpr int64_t kMostPadding = 128;    // a multiple of every format's padding
constexpr int64_t kStreamAhead = 4096;

#ifdef __AMX_BF16__
// The most rows with which AMX tiles, half empty, take longer. Those of codes of 8 bits need no unpacking.
int64_t most_integer_rows(const CoreWeight& weight) {
  return weight.format == CORE_FORMAT_INT4 ? 8 : 2;
}
#endif

Way way_of(const CoreWeight& weight, int64_t rows) {
  const bool integer = is_integer(weight);
#ifdef __AMX_BF16__
  const bool plain = integer && weight.codebook == 0;
  const int64_t most = weight.group == 0 ? kMostWholeRows : kMostCodeRows;
  if (plain && rows <= most_integer_rows(weight)) return kIntegers;
  if (plain && in_whole_rows(weight)) return kWhole;
  if (plain && rows <= most) return kCodes;
  if (rows > 1 && (integer || weight.format == CORE_FORMAT_BFLOAT16)) return kTiles;
#endif
#ifdef __AVX512BF16__
  if (weight.format == CORE_FORMAT_BFLOAT16) return kPairs;
#endif
  (void)rows;
  return integer && (weight.codebook == 0 || has_whole_values(weight)) ? kIntegers : kFloats;
}

int64_t up_to(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The forms of activations that implementations read.
struct Forms {
  bool eight_bits = false;  // of activations, where implementations read codes
  bool floats = false, pairs = false, planes = false, words = false;

  // Add what products of this many rows with a matrix read.
  void add(const CoreWeight& weight, int64_t rows) {
    const Way way = way_of(weight, rows);
    floats |= way == kFloats;
    words |= way == kIntegers && !(eight_bits && takes_bytes(weight));
    pairs |= way == kPairs || way == kTiles;
    planes |= way == kIntegers || way == kCodes || way == kWhole;
  }
};

// Return the buffers of these forms for a number of rows, but floats, laid out from base on.
Rows lay_out(const Forms& forms, int64_t width, int64_t rows, std::byte* base, int64_t* bytes) {
  const int64_t padded = up_to(width, kMostPadding);
  // Rows 4 KiB apart would fall into the same cache sets.
  const int64_t stride = padded % 2048 == 0 ? padded + 32 : padded;
  Rows out{nullptr, width, padded, stride, nullptr, {}};
  std::byte* at = base;
  if (forms.pairs) {
    out.pairs = reinterpret_cast<BFloat16*>(at);
    at += up_to(up_to(rows, 16) * stride * 2, 64);
  }
  if (forms.planes) {
    const bool eight_bits = forms.eight_bits, words = forms.words;
    const int64_t bytes_of_each = eight_bits && !words ? 1 : 2;
    out.planes.words = words ? reinterpret_cast<int16_t*>(at) : nullptr;
    out.planes.codes = words ? nullptr : reinterpret_cast<int8_t*>(at);
    out.planes.count = words ? 1 : bytes_of_each;
    out.planes.steps = eight_bits ? 127.0f : (words ? 32767.0f : 127.0f * 256.0f);
    at += up_to(rows, 16) * bytes_of_each * padded;
    out.planes.sums = reinterpret_cast<uint32_t*>(at);
    at += up_to(rows * sums_of_row(padded) * 4, 64);
    out.planes.totals = reinterpret_cast<float*>(at);
    at += up_to(rows * 4, 64);
    out.planes.scales = reinterpret_cast<float*>(at);
    at += up_to(rows * 4, 64);
  }
  *bytes = at - base;
  return out;
}

// Return the activation buffers that an op needs for a number of rows, laid out from base on.
Rows forms_at(const LinearOp& op, int64_t rows, std::byte* base, int64_t* bytes) {
  Forms forms{op.activations == CORE_ACTIVATIONS_INT8};
  for (int32_t i = 0; i < op.count; i++) forms.add(op.projections[i].weight, rows);
  return lay_out(forms, op.x.width, rows, base, bytes);
}

// Scratch of a thread: sums of a block of rows, as many gates, a dequantized piece of a tile, activations of few rows.
constexpr int64_t kSumBytes = kRowBlock * kTileOutputs * 4;
constexpr int64_t kPieceBegin = 2 * kSumBytes;
#ifdef __AMX_BF16__
constexpr int64_t kPieceBytes = kPairPiece * kTileOutputs * 2 + kProductBytes + kCodePiece * kTileOutputs;
#else
constexpr int64_t kPieceBytes = kFloatPiece * kTileOutputs * 4;
#endif

int64_t linear_scratch(const void* data, const CoreShape&, int32_t) {
  int64_t bytes = 0, most = 0;
  for (int64_t rows = 1; rows <= kFewRows; rows++) {
    forms_at(*static_cast<const LinearOp*>(data), rows, nullptr, &bytes);
    most = bytes > most ? bytes : most;
  }
  return kPieceBegin + kPieceBytes + most;
}

int64_t linear_shared(const void* data, const CoreShape& shape, int32_t) {
  const auto& op = *static_cast<const LinearOp*>(data);
  const int64_t most = op.x.rows == CORE_ROWS_TOKENS ? shape.max_tokens : shape.max_logits;
  int64_t few = 0, many = 0;
  forms_at(op, most < kMostWholeRows ? most : kMostWholeRows, nullptr, &few);
  forms_at(op, most, nullptr, &many);
  return few > many ? few : many;
}

// ---- phase 0: activations ----

int64_t convert_jobs(const void* data, const Step& step) {
  const auto& op = *static_cast<const LinearOp*>(data);
  const int64_t rows = step.rows(op.x);
  int64_t bytes = 0;
  if (rows > kFewRows && !step.ready) forms_at(op, rows, nullptr, &bytes);
  return bytes == 0 ? 0 : rows;
}

bool prepares(const Step& step) {
  return step.fed != nullptr && step.rows(step.fed->x) > kFewRows;
}

void prepare_row(const Step& step, int64_t row) {
  int64_t bytes;
  Rows rows = forms_at(*step.fed, step.rows(step.fed->x), step.shared, &bytes);
  fill_forms(rows, row, step.row(step.fed->x, row));
}

void convert(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const LinearOp*>(data);
  int64_t bytes;
  Rows rows = forms_at(op, step.rows(op.x), step.shared, &bytes);
  for (int64_t row = first; row < last; row++) fill_forms(rows, row, step.row(op.x, row));
}
