// Unpacking one group of 32 columns into eight vectors of byte codes and float scales, for every quantized encoding.
// Written once over a vector type V (linear_ymm.h, linear_avx512.cc); it knows layouts and nothing of activations.
//
// Each format has: Head, read once per superblock; unpack(head bytes, group bytes, head, g, codes, scale, min), where codes are unsigned
// with the layout's kOffset still on them, or signed when kSigned and V::kSigned (AVX2 has no unsigned 8 x 8 bit product sum). kTerms: how
// many vpmaddubsw results may be added in int16: kTerms * 2 * largest code * 127 <= 32767.
#pragma once
#include "ops/linear_layout.h"

namespace ridgeline {
namespace {

template <typename V>
struct Planes {
  using I = typename V::I;
  using F = typename V::F;

  static void nibbles(const uint8_t* p, int64_t next, I* c) {
    const I mask = V::set8(15);
    for (int i = 0; i < 4; ++i) {
      const I v = V::load(p + 32 * i, next);
      c[i] = V::both(v, mask);
      c[i + 4] = V::both(V::right(v, 4), mask);
    }
  }
  // Adds bit i of the bit plane to c[i], moved to `to`.
  static void add_bits(const uint8_t* p, int64_t next, int to, I* c) {
    const I v = V::load(p, next), mask = V::set8(1 << to);
    for (int i = 0; i < 8; ++i) c[i] = V::either(c[i], V::both(i < to ? V::left(v, to - i) : V::right(v, i - to), mask));
  }
  // Two bits of the pair plane, moved to `to`.
  static I pair(I v, int i, int to) { return V::both(2 * i < to ? V::left(v, to - 2 * i) : V::right(v, 2 * i - to), V::set8(3 << to)); }
  static void pairs(const uint8_t* p, int64_t next, I* c) {
    for (int j = 0; j < 2; ++j) {
      const I v = V::load(p + 32 * j, next);
      for (int i = 0; i < 4; ++i) c[4 * j + i] = pair(v, i, 0);
    }
  }
  static void add_pairs(const uint8_t* p, int64_t next, int to, I* c) {
    for (int j = 0; j < 2; ++j) {
      const I v = V::load(p + 32 * j, next);
      for (int i = 0; i < 4; ++i) c[4 * j + i] = V::either(c[4 * j + i], pair(v, i, to));
    }
  }
  // The two 6-bit numbers of group g (see linear_layout.h).
  static void six(const uint8_t* p, int64_t next, int g, I* u, I* v) {
    const I low = V::bytes(p + 8 * g, next), top = V::right(V::bytes(p + 64 + 8 * (g & 3), next), g & 4);
    *u = V::either(V::both(low, V::set32(15)), V::left(V::both(top, V::set32(3)), 4));
    *v = V::either(V::right(low, 4), V::left(V::both(top, V::set32(12)), 2));
  }
};

struct NoHead {};

template <typename V, typename L>
struct Base : L {
  using I = typename V::I;
  using F = typename V::F;
  using P = Planes<V>;
  static constexpr bool kSigned = false;  // the codes are signed bytes, whatever kOffset says
};

template <typename V>
struct FormatQ4_0 : Base<V, LayoutQ4_0> {
  using B = Base<V, LayoutQ4_0>;
  using Head = NoHead;
  static constexpr int kTerms = 8;
  static Head head(const uint8_t*) { return {}; }
  static void unpack(const uint8_t*, const uint8_t* p, const Head&, int, typename V::I* c, typename V::F* scale, typename V::F*) {
    B::P::nibbles(p, B::kGroupBytes, c);
    scale[0] = V::halves(p + B::kScaleAt, B::kGroupBytes);
  }
};

template <typename V>
struct FormatQ4_1 : Base<V, LayoutQ4_1> {
  using B = Base<V, LayoutQ4_1>;
  using Head = NoHead;
  static constexpr int kTerms = 8;
  static Head head(const uint8_t*) { return {}; }
  static void unpack(const uint8_t*, const uint8_t* p, const Head&, int, typename V::I* c, typename V::F* scale, typename V::F* min) {
    B::P::nibbles(p, B::kGroupBytes, c);
    scale[0] = V::halves(p + B::kScaleAt, B::kGroupBytes);
    min[0] = V::halves(p + B::kMinAt, B::kGroupBytes);
  }
};

template <typename V>
struct FormatQ5_0 : Base<V, LayoutQ5_0> {
  using B = Base<V, LayoutQ5_0>;
  using Head = NoHead;
  static constexpr int kTerms = 4;
  static Head head(const uint8_t*) { return {}; }
  static void unpack(const uint8_t*, const uint8_t* p, const Head&, int, typename V::I* c, typename V::F* scale, typename V::F*) {
    B::P::nibbles(p, B::kGroupBytes, c);
    B::P::add_bits(p + B::kBitsAt, B::kGroupBytes, 4, c);
    scale[0] = V::halves(p + B::kScaleAt, B::kGroupBytes);
  }
};

template <typename V>
struct FormatQ5_1 : Base<V, LayoutQ5_1> {
  using B = Base<V, LayoutQ5_1>;
  using Head = NoHead;
  static constexpr int kTerms = 4;
  static Head head(const uint8_t*) { return {}; }
  static void unpack(const uint8_t*, const uint8_t* p, const Head&, int, typename V::I* c, typename V::F* scale, typename V::F* min) {
    B::P::nibbles(p, B::kGroupBytes, c);
    B::P::add_bits(p + B::kBitsAt, B::kGroupBytes, 4, c);
    scale[0] = V::halves(p + B::kScaleAt, B::kGroupBytes);
    min[0] = V::halves(p + B::kMinAt, B::kGroupBytes);
  }
};

template <typename V>
struct FormatQ8_0 : Base<V, LayoutQ8_0> {
  using B = Base<V, LayoutQ8_0>;
  using Head = NoHead;
  static constexpr int kTerms = 1;
  static constexpr bool kSigned = true;
  static Head head(const uint8_t*) { return {}; }
  static void unpack(const uint8_t*, const uint8_t* p, const Head&, int, typename V::I* c, typename V::F* scale, typename V::F*) {
    for (int i = 0; i < 8; ++i) c[i] = V::load(p + 32 * i, B::kGroupBytes);
    if (!V::kSigned)
      for (int i = 0; i < 8; ++i) c[i] = V::differ(c[i], V::set8(-128));
    scale[0] = V::halves(p + B::kScaleAt, B::kGroupBytes);
  }
};

// kTableIQ4, moved up by 128 where codes must be unsigned.
template <typename V>
void look_up_iq4(typename V::I* c) {
  typename V::I table = V::table(kTableIQ4);
  if (!V::kSigned) table = V::differ(table, V::set8(-128));
  for (int i = 0; i < 8; ++i) c[i] = V::lookup(table, c[i]);
}

template <typename V>
struct FormatIQ4_NL : Base<V, LayoutIQ4_NL> {
  using B = Base<V, LayoutIQ4_NL>;
  using Head = NoHead;
  static constexpr int kTerms = 1;
  static constexpr bool kSigned = true;
  static Head head(const uint8_t*) { return {}; }
  static void unpack(const uint8_t*, const uint8_t* p, const Head&, int, typename V::I* c, typename V::F* scale, typename V::F*) {
    B::P::nibbles(p, B::kGroupBytes, c);
    look_up_iq4<V>(c);
    scale[0] = V::halves(p + B::kScaleAt, B::kGroupBytes);
  }
};

template <typename V>
struct FormatMXFP4 : Base<V, LayoutMXFP4> {
  using B = Base<V, LayoutMXFP4>;
  using Head = NoHead;
  static constexpr int kTerms = 4;
  static Head head(const uint8_t*) { return {}; }
  static void unpack(const uint8_t*, const uint8_t* p, const Head&, int, typename V::I* c, typename V::F* scale, typename V::F*) {
    static constexpr int8_t kMoved[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    B::P::nibbles(p, B::kGroupBytes, c);
    const typename V::I table = V::table(kMoved);
    for (int i = 0; i < 8; ++i) c[i] = V::lookup(table, c[i]);
    scale[0] = V::power_halved(V::bytes(p + B::kScaleAt, B::kGroupBytes));
  }
};

template <typename V>
struct ScaleMinHead {
  typename V::F d, dmin;
};

// d * (6-bit scale) and -(dmin * 6-bit minimum) of Q4_K and Q5_K.
template <typename V, typename B>
void scale_min(const uint8_t* p, const ScaleMinHead<V>& h, int g, typename V::F* scale, typename V::F* min) {
  typename V::I u, v;
  Planes<V>::six(p + B::kSixAt, B::kHeadBytes, g, &u, &v);
  scale[0] = V::times(h.d, V::floats(u));
  min[0] = V::negative(V::times(h.dmin, V::floats(v)));
}

template <typename V>
struct FormatQ4_K : Base<V, LayoutQ4_K> {
  using B = Base<V, LayoutQ4_K>;
  using Head = ScaleMinHead<V>;
  static constexpr int kTerms = 8;
  static Head head(const uint8_t* p) { return {V::halves(p + B::kScaleAt, B::kHeadBytes), V::halves(p + B::kMinAt, B::kHeadBytes)}; }
  static void unpack(const uint8_t* p, const uint8_t* group, const Head& h, int g, typename V::I* c, typename V::F* scale,
                     typename V::F* min) {
    B::P::nibbles(group, B::kGroupBytes, c);
    scale_min<V, B>(p, h, g, scale, min);
  }
};

template <typename V>
struct FormatQ5_K : Base<V, LayoutQ5_K> {
  using B = Base<V, LayoutQ5_K>;
  using Head = ScaleMinHead<V>;
  static constexpr int kTerms = 4;
  static Head head(const uint8_t* p) { return {V::halves(p + B::kScaleAt, B::kHeadBytes), V::halves(p + B::kMinAt, B::kHeadBytes)}; }
  static void unpack(const uint8_t* p, const uint8_t* group, const Head& h, int g, typename V::I* c, typename V::F* scale,
                     typename V::F* min) {
    B::P::nibbles(group, B::kGroupBytes, c);
    B::P::add_bits(group + 128, B::kGroupBytes, 4, c);
    scale_min<V, B>(p, h, g, scale, min);
  }
};

template <typename V>
struct ScaleHead {
  typename V::F d;
};

template <typename V>
struct FormatQ6_K : Base<V, LayoutQ6_K> {
  using B = Base<V, LayoutQ6_K>;
  using Head = ScaleHead<V>;
  static constexpr int kTerms = 2;
  static Head head(const uint8_t* p) { return {V::halves(p + B::kScaleAt, B::kHeadBytes)}; }
  static void unpack(const uint8_t* p, const uint8_t* group, const Head& h, int g, typename V::I* c, typename V::F* scale, typename V::F*) {
    B::P::nibbles(group, B::kGroupBytes, c);
    B::P::add_pairs(group + 128, B::kGroupBytes, 4, c);
    for (int i = 0; i < 2; ++i) scale[i] = V::times(h.d, V::floats(V::signed_bytes(p + B::kBytesAt + 16 * g + 8 * i, B::kHeadBytes)));
  }
};

template <typename V>
struct FormatQ3_K : Base<V, LayoutQ3_K> {
  using B = Base<V, LayoutQ3_K>;
  using Head = ScaleHead<V>;
  static constexpr int kTerms = 8;
  static Head head(const uint8_t* p) { return {V::halves(p + B::kScaleAt, B::kHeadBytes)}; }
  static void unpack(const uint8_t* p, const uint8_t* group, const Head& h, int g, typename V::I* c, typename V::F* scale, typename V::F*) {
    B::P::pairs(group, B::kGroupBytes, c);
    B::P::add_bits(group + 64, B::kGroupBytes, 2, c);
    typename V::I s[2];
    B::P::six(p + B::kSixAt, B::kHeadBytes, g, &s[0], &s[1]);
    for (int i = 0; i < 2; ++i) scale[i] = V::times(h.d, V::floats(V::minus(s[i], V::set32(32))));
  }
};

template <typename V>
struct FormatQ2_K : Base<V, LayoutQ2_K> {
  using B = Base<V, LayoutQ2_K>;
  using Head = ScaleMinHead<V>;
  static constexpr int kTerms = 8;
  static Head head(const uint8_t* p) { return {V::halves(p + B::kScaleAt, B::kHeadBytes), V::halves(p + B::kMinAt, B::kHeadBytes)}; }
  static void unpack(const uint8_t*, const uint8_t* group, const Head& h, int, typename V::I* c, typename V::F* scale, typename V::F* min) {
    B::P::pairs(group, B::kGroupBytes, c);
    for (int i = 0; i < 2; ++i) {
      const typename V::I both = V::bytes(group + 64 + 8 * i, B::kGroupBytes);
      scale[i] = V::times(h.d, V::floats(V::both(both, V::set32(15))));
      min[i] = V::negative(V::times(h.dmin, V::floats(V::right(both, 4))));
    }
  }
};

template <typename V>
struct FormatIQ4_XS : Base<V, LayoutIQ4_XS> {
  using B = Base<V, LayoutIQ4_XS>;
  using Head = ScaleHead<V>;
  static constexpr int kTerms = 1;
  static constexpr bool kSigned = true;
  static Head head(const uint8_t* p) { return {V::halves(p + B::kScaleAt, B::kHeadBytes)}; }
  static void unpack(const uint8_t* p, const uint8_t* group, const Head& h, int g, typename V::I* c, typename V::F* scale, typename V::F*) {
    B::P::nibbles(group, B::kGroupBytes, c);
    look_up_iq4<V>(c);
    const typename V::I low = V::both(V::right(V::bytes(p + B::kLowAt + 8 * (g & 3), B::kHeadBytes), g & 4), V::set32(15));
    const typename V::I top = V::both(V::right(V::bytes(p + B::kTopAt + 8 * (g & 1), B::kHeadBytes), g & 6), V::set32(3));
    scale[0] = V::times(h.d, V::floats(V::minus(V::either(low, V::left(top, 4)), V::set32(32))));
  }
};

}  // namespace
}  // namespace ridgeline
