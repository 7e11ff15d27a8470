// Products with packed weights, phase 1: tiles.

// Tiles of a matrix that threads of one node multiply: those on that node.
NodePart node_tiles(const WeightLayout& layout, const Step& step, int64_t node) {
  return NodePart(layout.tiles, step.nodes, node);
}

// Return the number of tiles to compute: of all projections, or with a fused gate of both at once.
int64_t tiles_of(const LinearOp& op, const Step& step, int64_t node) {
  if (op.gate != 0) return node_tiles(op.projections[0].layout, step, node).count;
  int64_t tiles = 0;
  for (int32_t i = 0; i < op.count; i++) tiles += node_tiles(op.projections[i].layout, step, node).count;
  return tiles;
}

int64_t tile_jobs(const void* data, const Step& step, int32_t node) {
  const auto& op = *static_cast<const LinearOp*>(data);
  return tiles_of(op, step, node) * ((step.rows(op.x) + kRowBlock - 1) / kRowBlock);
}

// Rows begin ... end - 1 times a tile.
struct TileJob {
  const CoreWeight& weight;
  WeightLayout layout;
  const float* bias;  // [outputs]; null: none
  int64_t tile, begin, end;

  // The output of the products, in rows of `width` floats of which `out` is row 0.
  Places places(float* out, int64_t width) const {
    const int64_t column = tile * kTileOutputs, left = weight.outputs - column;
    return {out + begin * width + column, width, end - begin, bias == nullptr ? nullptr : bias + column,
            left < kTileOutputs ? left : kTileOutputs};
  }
};

#ifndef __AMX_BF16__
struct TileShape {};
#endif

void multiply(const Tile& tile, const Rows& rows, Way way, int64_t first, int64_t last, std::byte* scratch,
              [[maybe_unused]] const Places& places, [[maybe_unused]] TileShape& shape) {
  auto* sums = reinterpret_cast<float*>(scratch);
  std::byte* piece = scratch + kPieceBegin;
  switch (way) {
    case kIntegers:
      return integer_tile(tile, rows, first, last, sums);
#ifdef __AVX512BF16__
    case kPairs:
      return pair_tile(tile, rows, first, last, sums);
#endif
#ifdef __AMX_BF16__
    case kCodes:
      return code_tile(tile, rows, first, last, sums, piece, shape);
    case kWhole:
      configure_tiles(shape, rows_of_tile((last - first) * rows.planes.count), 64);
      return whole_tile(tile, rows, first, last, places, scratch);
    case kTiles:
      configure_tiles(shape, kTileRows, 64);
      return amx_tile(tile, rows, first, last, sums, piece, places);
#endif
    default:
      return float_tile(tile, rows, first, last, sums, piece);
  }
}

// Return how far ahead to fetch weights, in bytes.
int64_t ahead_of(const WeightLayout& layout, Way way, int64_t rows) {
  if (rows <= 2 || way == kCodes || way == kWhole) return kStreamAhead;
  // A tile that several passes read is worth the whole next one; a piece, the next two.
  if (way != kIntegers) return layout.tile_bytes;
  const int64_t inputs = layout.group < kPieceInputs ? layout.group : kPieceInputs;
  const int64_t two = 2 * inputs * (layout.code_bytes / layout.group);
  return two < kStreamAhead ? kStreamAhead : two;
}

// count: rows of the step.
void run_job(const TileJob& job, const Rows& rows, int64_t count, const Places& places, std::byte* scratch,
             TileShape& shape) {
  const Way way = way_of(job.weight, count);
  const std::byte* data = tile_at(job.weight, job.layout, job.tile);
  const Tile tile{&job.weight, &job.layout, data, ahead_of(job.layout, way, job.end - job.begin)};
  multiply(tile, rows, way, job.begin, job.end, scratch, places, shape);
  if (way != kWhole && way != kTiles) put_sums(places, reinterpret_cast<const float*>(scratch));
}

// The same tile of two matrices: the products of the first are the gates of the second's. gated: row 0 of the output.
void run_gated(const TileJob& job, const TileJob& second, int32_t gate, float* gated, const Rows& rows, int64_t count,
               std::byte* scratch, TileShape& shape) {
  Places gates = job.places(gated, job.weight.outputs), out = second.places(gated, job.weight.outputs);
  out.gate = gate;
  out.gates = gates.row = reinterpret_cast<float*>(scratch + kSumBytes);
  gates.stride = kTileOutputs;
  run_job(job, rows, count, gates, scratch, shape);
  run_job(second, rows, count, out, scratch, shape);
}

// Return the activations of the step: shared by all threads, or this thread's own.
Rows rows_of(const LinearOp& op, const Step& step, Thread& thread) {
  const int64_t count = step.rows(op.x);
  const bool own = count <= kFewRows;
  int64_t bytes;
  Rows rows = forms_at(op, count, own ? thread.scratch + kPieceBegin + kPieceBytes : step.shared, &bytes);
  rows.floats = step.row(op.x, 0);
  for (int64_t row = 0; own && !thread.begun && row < count; row++) fill_forms(rows, row, step.row(op.x, row));
  return rows;
}

void multiply_tiles(const void* data, const Step& step, int64_t first, int64_t last, Thread& thread) {
  const auto& op = *static_cast<const LinearOp*>(data);
  const int64_t count = step.rows(op.x), tiles = tiles_of(op, step, thread.node);
  const Rows rows = rows_of(op, step, thread);
  TileShape shape;
  for (int64_t job = first; job < last; job++) {
    int64_t number = job % tiles;
    const int64_t begin = job / tiles * kRowBlock, end = begin + kRowBlock < count ? begin + kRowBlock : count;
    const Projection* projection = op.projections;
    NodePart own = node_tiles(projection->layout, step, thread.node);
    for (; number >= own.count; own = node_tiles((++projection)->layout, step, thread.node)) number -= own.count;
    const TileJob tile = {projection->weight, projection->layout, projection->bias, number + own.first, begin, end};
    if (op.gate != 0) {
      const auto& [weight, layout, bias, out] = op.projections[1];
      const TileJob second = {weight, layout, bias, tile.tile, begin, end};
      run_gated(tile, second, op.gate, step.row(op.gated, 0), rows, count, thread.scratch, shape);
    } else {
      run_job(tile, rows, count, tile.places(step.row(projection->out, 0), projection->out.width), thread.scratch,
              shape);
    }
  }
#ifdef __AMX_BF16__
  if (shape.rows != 0) _tile_release();
#endif
}

const Kernel linear_kernel = {
    {{convert_jobs, convert}, {nullptr, multiply_tiles, tile_jobs}}, linear_shared, linear_scratch};
