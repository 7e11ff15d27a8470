// Products with packed weights, phase 1: tiles.

// Tiles of a projection that threads of one node multiply: those whose weights are on that node.
NodePart node_tiles(const Projection& projection, const Step& step, int64_t node) {
  return NodePart(WeightLayout(projection.weight).tiles, step.nodes, node);
}

// Return the number of tiles to compute: of all projections, or with a fused gate of both at once.
int64_t tiles_of(const LinearOp& op, const Step& step, int64_t node) {
  if (op.gate != 0) return node_tiles(op.projections[0], step, node).count;
  int64_t tiles = 0;
  for (int32_t i = 0; i < op.count; i++) tiles += node_tiles(op.projections[i], step, node).count;
  return tiles;
}

int64_t tile_jobs(const void* data, const Step& step, int32_t node) {
  const auto& op = *static_cast<const LinearOp*>(data);
  return tiles_of(op, step, node) * ((step.rows(op.x) + kRowBlock - 1) / kRowBlock);
}

// Rows begin ... end - 1 times a tile.
struct TileJob {
  const Projection& projection;
  int64_t tile, begin, end;

  // The output of the products, in rows of `out`.
  Places places(const CoreValue& out, const Step& step) const {
    const int64_t column = tile * kTileOutputs, left = projection.weight.outputs - column;
    return {step.row(out, begin) + column, out.width, end - begin,
            projection.bias == nullptr ? nullptr : projection.bias + column, left < kTileOutputs ? left : kTileOutputs};
  }
};

#ifndef __AMX_BF16__
struct TileShape {};
#endif

void multiply(const Tile& tile, const Rows& rows, Way way, int64_t first, int64_t last, std::byte* room,
              [[maybe_unused]] const Places& places, [[maybe_unused]] TileShape& shape) {
  auto* sums = reinterpret_cast<float*>(room);
  std::byte* piece = room + kPieceBegin;
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
      return whole_tile(tile, rows, first, last, places, room);
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
void run_job(const TileJob& job, const Rows& rows, int64_t count, const Places& places, std::byte* room,
             TileShape& shape) {
  const CoreWeight& weight = job.projection.weight;
  const WeightLayout layout(weight);
  const Way way = way_of(weight, count);
  const Tile tile{&weight, &layout, tile_at(weight, layout, job.tile), ahead_of(layout, way, job.end - job.begin)};
  multiply(tile, rows, way, job.begin, job.end, room, places, shape);
  if (way != kWhole && way != kTiles) put_sums(places, reinterpret_cast<const float*>(room));
}

// The same tile of both projections: the products of the first are the gates of the second's.
void run_gated(const LinearOp& op, const Step& step, const TileJob& job, const Rows& rows, int64_t count,
               std::byte* room, TileShape& shape) {
  const TileJob second = {op.projections[1], job.tile, job.begin, job.end};
  Places gates = job.places(op.gated, step), out = second.places(op.gated, step);
  out.gate = op.gate;
  out.gates = gates.row = reinterpret_cast<float*>(room + kSumBytes);
  gates.stride = kTileOutputs;
  run_job(job, rows, count, gates, room, shape);
  run_job(second, rows, count, out, room, shape);
}

// Return the activations of the step: shared by all threads, or this thread's own.
Rows rows_of(const LinearOp& op, const Step& step, Thread& thread) {
  const int64_t count = step.rows(op.x);
  const bool own = count <= kFewRows;
  int64_t bytes;
  Rows rows = forms_at(op, count, own ? thread.room + kPieceBegin + kPieceBytes : step.shared, &bytes);
  rows.floats = step.row(op.x, 0);
  for (int64_t row = 0; own && !thread.begun && row < count; row++) fill_forms(rows, row);
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
    NodePart own = node_tiles(*projection, step, thread.node);
    for (; number >= own.count; own = node_tiles(*++projection, step, thread.node)) number -= own.count;
    const TileJob tile = {*projection, number + own.first, begin, end};
    if (op.gate != 0) {
      run_gated(op, step, tile, rows, count, thread.room, shape);
    } else {
      run_job(tile, rows, count, tile.places(projection->out, step), thread.room, shape);
    }
  }
#ifdef __AMX_BF16__
  if (shape.rows != 0) _tile_release();
#endif
}

const Kernel linear_kernel = {{{convert_jobs, convert}, {nullptr, multiply_tiles, tile_jobs}}, linear_shared, linear_room};
