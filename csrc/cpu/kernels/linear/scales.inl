// Scaling of a group's products, of codes and planes of activations.

// The sum of a row's numbers in a group.
float group_sum(const Planes& planes, int64_t padded, int64_t row, int64_t first, int64_t inputs) {
  const uint32_t* sums = planes.sums + row * sums_of_row(padded) + first / kSumInputs;
  return static_cast<float>(static_cast<int32_t>(sums[inputs / kSumInputs] - sums[0]));
}

// sum += product * scale + x_sum * offset, for a product in planes.
template <int kPlanes>
[[gnu::always_inline]] inline Vec add_product(const Codes* planes, int64_t apart, const Affine& affine, Vec x_sum,
                                              Vec sum) {
  Vec product = number(planes[0]);
  if constexpr (kPlanes == 2) product = fma(product, Vec::all(256.0f), number(planes[apart]));
  return fma(product, affine.scale, fma(affine.offset, x_sum, sum));
}

// sums [rows][64] times the scales of the rows.
void scale_rows(const Planes& planes, int64_t first, int64_t last, float* sums) {
  for (int64_t row = first; row < last; row++, sums += kTileOutputs) {
    const Vec scale = Vec::all(planes.scales[row]);
    for (int64_t c = 0; c < kTileOutputs; c += Vec::kLanes) (Vec::load(sums + c) * scale).store(sums + c);
  }
}
