// Functions of sigmoid form. This header is included once per instruction set.
#if defined(BELLOWS_KERNELS_SIGMOID) == defined(HWY_TARGET_TOGGLE)
#ifdef BELLOWS_KERNELS_SIGMOID
#undef BELLOWS_KERNELS_SIGMOID
#else
#define BELLOWS_KERNELS_SIGMOID
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// A rational function in x² on [-4, 4]; beyond that range erf is ±1 in float. Double is for checks only and uses the C
/// library.
template <class D>
HWY_INLINE hn::Vec<D> erf_of(D d, hn::Vec<D> x) {
  using A = hn::TFromD<D>;
  if constexpr (std::is_same_v<A, double>) {
    alignas(64) double values[hn::MaxLanes(D())];
    hn::Store(x, d, values);
    for (size_t i = 0; i < hn::Lanes(d); ++i) values[i] = std::erf(values[i]);
    return hn::Load(d, values);
  } else {
    const auto c = [&](float value) HWY_ATTR { return hn::Set(d, value); };
    const auto z = hn::Min(hn::Max(x, c(-4)), c(4)), z2 = hn::Mul(z, z);
    auto p = hn::MulAdd(c(-2.72614225801306e-10F), z2, c(2.77068142495902e-08F));
    p = hn::MulAdd(p, z2, c(-2.10102402082508e-06F));
    p = hn::MulAdd(p, z2, c(-5.69250639462346e-05F));
    p = hn::MulAdd(p, z2, c(-7.34990630326855e-04F));
    p = hn::MulAdd(p, z2, c(-2.95459980854025e-03F));
    p = hn::MulAdd(p, z2, c(-1.60960333262415e-02F));
    auto q = hn::MulAdd(c(-1.45660718464996e-05F), z2, c(-2.13374055278905e-04F));
    q = hn::MulAdd(q, z2, c(-1.68282697438203e-03F));
    q = hn::MulAdd(q, z2, c(-7.37332916720468e-03F));
    q = hn::MulAdd(q, z2, c(-1.42647390514189e-02F));
    return hn::Div(hn::Mul(z, p), q);
  }
}

/// Where e^x would overflow, the quotient is 0 or 1 in any case.
template <class D>
HWY_INLINE hn::Vec<D> sigmoid_of(D d, hn::Vec<D> x) {
  using A = hn::TFromD<D>;
  const auto limit = hn::Set(d, std::is_same_v<A, double> ? A(700) : A(88)), one = hn::Set(d, A(1));
  const auto e = hn::Exp(d, hn::Min(hn::Neg(x), limit));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Div(one, hn::Add(one, e)));
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BELLOWS_KERNELS_SIGMOID
