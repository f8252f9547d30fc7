// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_API_API_KEY_H_
#define KT_COORDINATOR_API_API_KEY_H_

#include <string_view>

namespace kt::api {

// True if the value of an authorization header (or metadata) is "Bearer KEY" with this key. The
// time it takes depends on the lengths only.
bool BearerMatches(std::string_view authorization, std::string_view key);

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_API_KEY_H_
