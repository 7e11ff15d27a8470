// Hadamard rotation of heads, as common/hadamard.h defines it.

// One butterfly step between lanes kApart apart: the sum in the lower lane, the difference in the upper one.
template <int kApart>
Vec meet(Vec x) {
#ifdef __AVX512F__
  constexpr __mmask16 kSecond = kApart == 1 ? 0xaaaa : kApart == 2 ? 0xcccc : kApart == 4 ? 0xf0f0 : 0xff00;
  constexpr int kSwap = kApart == 1 || kApart == 4 ? 0xb1 : 0x4e;
  __m512 other;
  if constexpr (kApart < 4) {
    other = _mm512_permute_ps(x.v, kSwap);
  } else {
    other = _mm512_shuffle_f32x4(x.v, x.v, kSwap);
  }
  return {_mm512_mask_sub_ps(_mm512_add_ps(x.v, other), kSecond, other, x.v)};
#else
  constexpr int kSecond = kApart == 1 ? 0xaa : kApart == 2 ? 0xcc : 0xf0;
  __m256 other;
  if constexpr (kApart < 4) {
    other = _mm256_permute_ps(x.v, kApart == 1 ? 0xb1 : 0x4e);
  } else {
    other = _mm256_permute2f128_ps(x.v, x.v, 1);
  }
  return {_mm256_blend_ps(_mm256_add_ps(x.v, other), _mm256_sub_ps(other, x.v), kSecond)};
#endif
}

Vec hadamard_lanes(Vec x) {
  x = meet<4>(meet<2>(meet<1>(x)));
#ifdef __AVX512F__
  x = meet<8>(x);
#endif
  return x;
}

// out[dim] = head[dim], rotated and multiplied by factor, a power of two; out may be head.
void hadamard(const float* head, float factor, float* out, int64_t dim) {
  const int64_t block = hadamard_block(dim);
  for (int64_t d = 0; d < dim; d += Vec::kLanes) hadamard_lanes(Vec::load(head + d) * Vec::all(factor)).store(out + d);
  for (int64_t apart = Vec::kLanes; apart < block; apart *= 2) {
    for (int64_t d = 0; d < dim; d += Vec::kLanes) {
      if ((d & apart) != 0) continue;
      const Vec a = Vec::load(out + d), b = Vec::load(out + d + apart);
      (a + b).store(out + d);
      (a - b).store(out + d + apart);
    }
  }
}

// Return the factor of rotated queries and outputs.
float hadamard_factor(int64_t dim) {
  return 1.0f / static_cast<float>(hadamard_block(dim));
}
