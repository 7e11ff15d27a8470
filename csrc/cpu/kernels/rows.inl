// Row-wise ops: embedding, norm, gate, sums, selection. A job is a row, or a part of one.

constexpr int64_t kEntriesOfJob = 4096;  // entries per job of a row that is split

// Convert a row that was just written into the forms that the next linear op reads.
void prepare_row(const Step& step, int64_t row);
bool prepares(const Step& step);

// ---- embedding ----

int64_t embed_jobs(const void* op, const Step& step) {
  return step.rows(static_cast<const EmbedOp*>(op)->out);
}

void embed(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const EmbedOp*>(data);
  const int64_t first_id = step.shape->rank * op.table.outputs;
  for (int64_t row = first; row < last; row++) {
    const int64_t id = step.batch->token_ids[row] - first_id;
    if (id >= 0 && id < op.table.outputs) weight_row(op.table, id, step.row(op.out, row));
  }
}

const Kernel embed_kernel = {{{embed_jobs, embed}, {}}, nullptr, nullptr};

// ---- norm ----

// sum = a + b; return the sum of its squares. If b is null, sum is not written.
float add_and_square(const float* a, const float* b, float* sum_out, int64_t n) {
  constexpr int64_t kLanes = Vec::kLanes;
  Vec squares[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  for (int64_t i = 0, part = 0; i < n; i += kLanes, part = (part + 1) % 4) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    Vec x = Vec::load_first(a + i, lanes);
    if (b != nullptr) {
      x = x + Vec::load_first(b + i, lanes);
      x.store_first(sum_out + i, lanes);
    }
    squares[part] = fma(x, x, squares[part]);
  }
  return sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
}

// out = weight * in / sqrt(squares / n + eps), where squares is the sum of in's squares; out may be in.
void normalize(const float* in, float squares, const float* weight, float eps, float* out, int64_t n) {
  constexpr int64_t kLanes = Vec::kLanes;
  const Vec factor = Vec::all(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    (Vec::load_first(in + i, lanes) * factor * Vec::load_first(weight + i, lanes)).store_first(out + i, lanes);
  }
}

void norm_row(const CoreNorm& op, const Step& step, int64_t row) {
  const int64_t n = op.x.width;
  const float* x = step.row(op.x, row);
  const float* residual = op.residual.width != 0 ? step.row(op.residual, row) : nullptr;
  float* total = residual != nullptr ? step.row(op.residual_out, row) : nullptr;
  const float squares = add_and_square(x, residual, total, n);
  normalize(total != nullptr ? total : x, squares, op.weight, op.eps, step.row(op.out, row), n);
}

int64_t norm_jobs(const void* op, const Step& step) {
  return step.rows(static_cast<const CoreNorm*>(op)->x);
}

void norm(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  for (int64_t row = first; row < last; row++) {
    norm_row(*static_cast<const CoreNorm*>(data), step, row);
    if (prepares(step)) prepare_row(step, row);
  }
}

const Kernel norm_kernel = {{{norm_jobs, norm}, {}}, nullptr, nullptr};

// Return the sum over n entries of term(entry), in a fixed order.
template <typename Term>
float sum_entries(const float* in, int64_t n, Term term) {
  constexpr int64_t kLanes = Vec::kLanes;
  Vec sums[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0, part = 0; i < whole; i += kLanes, part = (part + 1) % 4) {
    sums[part] = sums[part] + term(Vec::load(in + i));
  }
  float lanes[Vec::kLanes] = {};
  if (whole < n) {
    term(Vec::load_first(in + whole, n - whole)).store_first(lanes, n - whole);
    sums[0] = sums[0] + Vec::load(lanes);
  }
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void layer_norm_row(const CoreLayerNorm& op, const float* x, float* out) {
  constexpr int64_t kLanes = Vec::kLanes;
  const int64_t n = op.x.width;
  const Vec mean = Vec::all(sum_entries(x, n, [](Vec each) { return each; }) / static_cast<float>(n));
  const float squares = sum_entries(x, n, [mean](Vec each) { return (each - mean) * (each - mean); });
  const Vec factor = Vec::all(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + op.eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    const Vec bias = op.bias == nullptr ? Vec::zero() : Vec::load_first(op.bias + i, lanes);
    const Vec scaled = (Vec::load_first(x + i, lanes) - mean) * factor;
    fma(scaled, Vec::load_first(op.weight + i, lanes), bias).store_first(out + i, lanes);
  }
}

int64_t layer_norm_jobs(const void* op, const Step& step) {
  return step.rows(static_cast<const CoreLayerNorm*>(op)->x);
}

void layer_norm(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreLayerNorm*>(data);
  for (int64_t row = first; row < last; row++) {
    layer_norm_row(op, step.row(op.x, row), step.row(op.out, row));
    if (prepares(step)) prepare_row(step, row);
  }
}

const Kernel layer_norm_kernel = {{{layer_norm_jobs, layer_norm}, {}}, nullptr, nullptr};

// ---- gate ----

Vec tanh(Vec x) {
  const Vec e = exp(min(max(x, Vec::all(-10.0f)), Vec::all(10.0f)) * Vec::all(2.0f));
  return (e - Vec::all(1.0f)) / (e + Vec::all(1.0f));
}

Vec silu(Vec x) {
  return x / (Vec::all(1.0f) + exp(Vec::zero() - x));
}

Vec gelu_tanh(Vec x) {
  const Vec inner = Vec::all(0.79788456f) * fma(Vec::all(0.044715f) * x * x, x, x);
  return Vec::all(0.5f) * x * (Vec::all(1.0f) + tanh(inner));
}

// Uses the library's erf: slow but exact, for the few models that need it.
Vec gelu(Vec x) {
  float lanes[Vec::kLanes];
  x.store(lanes);
  for (float& lane : lanes) lane = 0.5f * lane * (1.0f + __builtin_erff(lane * 0.70710678f));
  return Vec::load(lanes);
}

// min and max return the second of two where one is NaN.
Vec clamped(Vec gate, Vec up) {
  const Vec most = Vec::all(7.0f), g = min(most, gate);
  const Vec limited = min(most, max(Vec::zero() - most, up));
  return g / (Vec::all(1.0f) + exp(g * Vec::all(-1.702f))) * (limited + Vec::all(1.0f));
}

template <typename Gate>
void gate_entries(const float* gate, const float* up, float* out, int64_t n, Gate combined) {
  constexpr int64_t kLanes = Vec::kLanes;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    const Vec other = up == nullptr ? Vec::all(1.0f) : Vec::load_first(up + i, lanes);
    combined(Vec::load_first(gate + i, lanes), other).store_first(out + i, lanes);
  }
}

// out = activation(gate) * up for n entries; up is 1 if it is null.
void gate_row(int32_t activation, const float* gate, const float* up, float* out, int64_t n) {
  if (activation == CORE_GATE_SILU) gate_entries(gate, up, out, n, [](Vec x, Vec y) { return silu(x) * y; });
  if (activation == CORE_GATE_GELU) gate_entries(gate, up, out, n, [](Vec x, Vec y) { return gelu(x) * y; });
  if (activation == CORE_GATE_GELU_TANH) gate_entries(gate, up, out, n, [](Vec x, Vec y) { return gelu_tanh(x) * y; });
  if (activation == CORE_GATE_CLAMPED) gate_entries(gate, up, out, n, [](Vec x, Vec y) { return clamped(x, y); });
}

// Return the entries of a job: whole rows if they are prepared for the next op.
int64_t gated_entries(const CoreGated& op, const Step& step) {
  return prepares(step) || op.gate.width < kEntriesOfJob ? op.gate.width : kEntriesOfJob;
}

int64_t gated_jobs(const void* data, const Step& step) {
  const auto& op = *static_cast<const CoreGated*>(data);
  const int64_t entries = gated_entries(op, step);
  return step.rows(op.gate) * ((op.gate.width + entries - 1) / entries);
}

void gated(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreGated*>(data);
  const int64_t width = op.gate.width, entries = gated_entries(op, step), blocks = (width + entries - 1) / entries;
  for (int64_t job = first; job < last; job++) {
    const int64_t row = job / blocks, at = job % blocks * entries;
    const int64_t n = width - at < entries ? width - at : entries;
    const float* gate = step.row(op.gate, row) + at;
    const float* up = op.up.width == 0 ? nullptr : step.row(op.up, row) + at;
    gate_row(op.activation, gate, up, step.row(op.out, row) + at, n);
    if (prepares(step)) prepare_row(step, row);
  }
}

const Kernel gated_kernel = {{{gated_jobs, gated}, {}}, nullptr, nullptr};

// ---- scale, cap and sum ----

void scaled_row(const CoreScaled& op, const Step& step, int64_t row) {
  constexpr int64_t kLanes = Vec::kLanes;
  const int64_t n = op.x.width;
  const float* x = step.row(op.x, row);
  const float* added = op.added.width != 0 ? step.row(op.added, row) : nullptr;
  float* out = step.row(op.out, row);
  const Vec scale = Vec::all(op.scale), cap = Vec::all(op.soft_cap);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    Vec y = Vec::load_first(x + i, lanes) * scale;
    if (op.soft_cap > 0) y = cap * tanh(y / cap);
    if (added != nullptr) y = y + Vec::load_first(added + i, lanes);
    y.store_first(out + i, lanes);
  }
}

int64_t scaled_jobs(const void* op, const Step& step) {
  return step.rows(static_cast<const CoreScaled*>(op)->x);
}

void scaled(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  for (int64_t row = first; row < last; row++) {
    scaled_row(*static_cast<const CoreScaled*>(data), step, row);
  }
}

const Kernel scaled_kernel = {{{scaled_jobs, scaled}, {}}, nullptr, nullptr};

// ---- selection ----

int64_t select_jobs(const void* op, const Step& step) {
  return step.rows(static_cast<const CoreSelect*>(op)->out);
}

void select(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreSelect*>(data);
  for (int64_t row = first; row < last; row++) {
    const auto bytes = static_cast<size_t>(op.x.width) * sizeof(float);
    __builtin_memcpy(step.row(op.out, row), step.row(op.x, step.batch->wanted[row]), bytes);
  }
}

const Kernel select_kernel = {{{select_jobs, select}, {}}, nullptr, nullptr};

int64_t columns_jobs(const void* op, const Step& step) {
  return step.rows(static_cast<const CoreColumns*>(op)->out);
}

void columns(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreColumns*>(data);
  for (int64_t row = first; row < last; row++) {
    const auto bytes = static_cast<size_t>(op.out.width) * sizeof(float);
    __builtin_memcpy(step.row(op.out, row), step.row(op.x, row) + op.first, bytes);
  }
}

const Kernel columns_kernel = {{{columns_jobs, columns}, {}}, nullptr, nullptr};
