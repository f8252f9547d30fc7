// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/api_key.h"

#include <strings.h>

#include <cstddef>

namespace kt::api {
namespace {

constexpr std::string_view kScheme = "bearer ";  // its case does not matter

bool EqualsInConstantTime(std::string_view a, std::string_view b) {
  volatile size_t difference = a.size() ^ b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    difference =
        difference | static_cast<unsigned char>(a[i] ^ (b.empty() ? '\0' : b[i % b.size()]));
  }
  return difference == 0;
}

}  // namespace

bool BearerMatches(std::string_view authorization, std::string_view key) {
  const bool bearer = authorization.size() > kScheme.size() &&
                      strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) == 0;
  return EqualsInConstantTime(bearer ? authorization.substr(kScheme.size()) : "",
                              key);  // an absent key compares like a wrong one
}

}  // namespace kt::api
