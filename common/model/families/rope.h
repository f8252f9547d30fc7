// SPDX-License-Identifier: Apache-2.0
// The angles of rotary embeddings: config.json's rope_theta, rope_scaling and rope_parameters.
#ifndef KT_COMMON_MODEL_FAMILIES_ROPE_H_
#define KT_COMMON_MODEL_FAMILIES_ROPE_H_

#include "common/model/config_reader.h"
#include "common/model/model_config.h"

namespace kt {

// What absent fields mean.
struct RopeDefaults {
  double theta = 10000;
  double partial_rotary_factor = 1;
  bool partial = true;  // false: the family turns whole heads whatever partial_rotary_factor says,
                        // unless rope is scaled
};

// The rope of heads of `head_dim` components, half-split: plain, or stretched by linear, llama3 or
// yarn scaling. Needs c.max_position.
RopeConfig ReadRope(ConfigReader& r, const ModelConfig& c, int head_dim,
                    const RopeDefaults& defaults);

// What multi-head latent attention multiplies its scale by: m^2 with m = 0.1 mscale_all_dim
// ln(factor) + 1 where rope is scaled and mscale_all_dim is given, else 1.
double LatentScaleFactor(ConfigReader& r);

}  // namespace kt

#endif  // KT_COMMON_MODEL_FAMILIES_ROPE_H_
