// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_BASE_STRONG_ID_H_
#define KT_COMMON_BASE_STRONG_ID_H_

#include <compare>
#include <cstdint>
#include <functional>

namespace kt {

// An integer that names one kind of thing; kinds do not mix. using LayerId = StrongId<struct
// LayerIdTag>;
template <typename Tag, typename Rep = int32_t>
struct StrongId {
  Rep value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;
};

using LayerId = StrongId<struct LayerIdTag>;
using ExpertId = StrongId<struct ExpertIdTag>;
using BlockId = StrongId<struct BlockIdTag>;

}  // namespace kt

template <typename Tag, typename Rep>
struct std::hash<kt::StrongId<Tag, Rep>> {
  size_t operator()(const kt::StrongId<Tag, Rep>& id) const { return std::hash<Rep>()(id.value); }
};

#endif  // KT_COMMON_BASE_STRONG_ID_H_
