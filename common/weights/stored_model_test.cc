// SPDX-License-Identifier: Apache-2.0
#include "common/weights/stored_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "common/base/bf16.h"
#include "common/base/status.h"
#include "common/weights/test_checkpoint.h"

namespace kt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kModels = KT_SOURCE_DIR "/tests/data/models";
const std::string kFixtures = KT_SOURCE_DIR "/../shared/fixtures";
const std::string kConfigs = KT_SOURCE_DIR "/common/model/fuzz_corpus";
const std::string kExpert = "model.layers.1.mlp.experts.3.";

BentCheckpoint Bent(const std::string& family = "qwen3_moe") {
  return BentCheckpoint(kModels + "/" + family);
}

// ---- What is stored, dequantised apart from the views. ----

float Number(const TensorInfo& t, int64_t i) {
  const uint8_t* p = t.data.data() + i * static_cast<int64_t>(DTypeBytes(t.dtype));
  if (t.dtype == DType::kF32) {
    float x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  if (t.dtype == DType::kF8E4M3) {
    const int e = *p >> 3 & 15, m = *p & 7;
    const double x = e == 0 ? m * std::pow(2.0, -9) : (8 + m) * std::pow(2.0, e - 10);
    return static_cast<float>(*p & 0x80 ? -x : x);
  }
  EXPECT_EQ(t.dtype, DType::kBF16) << t.name;
  return ToFloat(bf16{static_cast<uint16_t>(p[0] | p[1] << 8)});
}

struct Opened {
  explicit Opened(const std::string& dir)
      : config(LoadModelConfig(dir).value()),
        checkpoint(Checkpoint::Open(dir).value()),
        model(ResolveWeights(config, *checkpoint).value()) {}
  const TensorInfo& Tensor(const std::string& name) const {
    const TensorInfo* t = checkpoint->Find(name);
    EXPECT_NE(t, nullptr) << name;
    return *t;
  }
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  StoredModel model;
};

// Compares rows and columns spread over the matrix, the last ones among them.
template <typename Expected>
void ExpectValues(const StoredMatrix& m, int n, int k, Expected expected) {
  ASSERT_TRUE(m);
  ASSERT_EQ(m.view.n, n);
  ASSERT_EQ(m.view.k, k);
  for (int r : {0, 1, n / 3, n / 2, n - 2, n - 1}) {
    for (int c : {0, 1, 2, k / 3, k / 2, k - 2, k - 1}) {
      ASSERT_EQ(m.view.At(r, c), expected(r, c)) << m.codes->name << " " << r << ", " << c;
    }
  }
}

void ExpectPlain(const Opened& o, const StoredMatrix& m, const std::string& name, int n, int k) {
  const TensorInfo& t = o.Tensor(name);
  ExpectValues(m, n, k, [&](int r, int c) { return Number(t, int64_t{r} * k + c); });
}

void ExpectFp8Block(const Opened& o, const StoredMatrix& m, const std::string& module, int n,
                    int k) {
  const TensorInfo& w = o.Tensor(module + ".weight");
  const TensorInfo& s = o.Tensor(module + ".weight_scale_inv");
  const int64_t columns = (k + 127) / 128;
  ExpectValues(m, n, k, [&](int r, int c) {
    return Number(w, int64_t{r} * k + c) * Number(s, r / 128 * columns + c / 128);
  });
}

void ExpectPacked(const Opened& o, const StoredMatrix& m, const std::string& module, int n, int k,
                  int bits, int group) {
  const TensorInfo& w = o.Tensor(module + ".weight_packed");
  const TensorInfo& s = o.Tensor(module + ".weight_scale");
  const int per_word = 32 / bits;
  ExpectValues(m, n, k, [&](int r, int c) {
    uint32_t word;
    std::memcpy(&word, w.data.data() + 4 * (int64_t{r} * (k / per_word) + c / per_word), 4);
    const uint32_t code = word >> (c % per_word * bits) & ((1u << bits) - 1);
    const float q = static_cast<float>(static_cast<int>(code) - (1 << (bits - 1)));
    return q * Number(s, int64_t{r} * (k / group) + c / group);
  });
}

void ExpectMxfp4(const Opened& o, const StoredMatrix& m, const std::string& name, int e, int rows,
                 int row_step, int row_first, int k) {
  constexpr float kValues[] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
  const TensorInfo& blocks = o.Tensor(name + "_blocks");
  const TensorInfo& scales = o.Tensor(name + "_scales");
  ExpectValues(m, rows / row_step, k, [&](int r, int c) {
    const int64_t row = int64_t{e} * rows + r * row_step + row_first;
    const uint8_t byte = blocks.data[static_cast<size_t>(row * (k / 2) + c / 2)];
    const uint8_t scale = scales.data[static_cast<size_t>(row * (k / 32) + c / 32)];
    return kValues[c % 2 == 0 ? byte & 15 : byte >> 4] * std::ldexp(1.0f, scale - 127);
  });
}

std::vector<float> Values(const StoredVector& v) {
  std::vector<float> out(static_cast<size_t>(v.n));
  if (v) v.Read(out.data());
  return out;
}

#define KT_NEEDS_FIXTURES() \
  if (!std::filesystem::exists(kFixtures)) GTEST_SKIP() << "no fixtures in " << kFixtures

TEST(StoredModelTest, FixturesInTheTreeFit) {
  for (const char* family : {"qwen3_moe", "glm4_moe"}) {
    Opened o(kModels + "/" + family);
    EXPECT_TRUE(o.model.layers[0].input_norm) << family;
  }
}

TEST(StoredModelTest, DemoModelsFit) {
  int found = 0;
  for (const char* name : {"smol-moe-mirror", "smol-moe-bf16"}) {
    std::string dir = std::string(KT_SOURCE_DIR "/build/models/") + name;
    if (!std::filesystem::exists(dir)) continue;
    ++found;
    Opened o(dir);
    EXPECT_TRUE(o.model.lm_head) << name;
  }
  if (found == 0) GTEST_SKIP() << "no demo model in build/models: run tools/make_demo_model.py";
}

TEST(StoredModelTest, EveryFixtureFits) {
  KT_NEEDS_FIXTURES();
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFixtures)) {
    const std::string dir = entry.path().string();
    if (!std::filesystem::exists(dir + "/golden.safetensors")) continue;
    ++found;
    auto config = LoadModelConfig(dir);
    ASSERT_TRUE(config.ok()) << config.status();
    auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (StoredParts parts : {StoredParts::kAll, StoredParts::kExperts}) {
      auto model = ResolveWeights(*config, **checkpoint, parts);
      ASSERT_TRUE(model.ok()) << model.status();
      for (size_t l = 0; l < config->layers.size(); ++l) {
        const auto& experts = model->layers[l].experts;
        ASSERT_EQ(experts.empty(), !config->layers[l].moe.has_value()) << dir;
        for (const StoredExpert& e : experts) {
          ASSERT_TRUE(e.ffn.gate && e.ffn.up && e.ffn.down) << dir;
        }
        EXPECT_EQ(static_cast<bool>(model->layers[l].input_norm), parts == StoredParts::kAll);
      }
    }
  }
  EXPECT_GE(found, 22);
}

TEST(StoredModelTest, PlainValues) {
  Opened o(kModels + "/glm4_moe");
  const StoredLayer& l = o.model.layers[1];
  ExpectPlain(o, l.q, "model.layers.1.self_attn.q_proj.weight", 192, 112);
  ExpectPlain(o, l.ffn.down, "model.layers.1.mlp.shared_experts.down_proj.weight", 112, 32);
  ExpectPlain(o, l.experts[15].ffn.up, "model.layers.1.mlp.experts.15.up_proj.weight", 32, 112);
  ExpectPlain(o, o.model.layers[0].ffn.gate, "model.layers.0.mlp.gate_proj.weight", 256, 112);
  ExpectPlain(o, o.model.lm_head, "lm_head.weight", 512, 112);
  EXPECT_FALSE(o.model.layers[0].router);
  EXPECT_EQ(l.correction_bias.tensor->dtype, DType::kF32);
  EXPECT_EQ(Values(l.correction_bias)[3],
            Number(o.Tensor("model.layers.1.mlp.gate.e_score_correction_bias"), 3));
  EXPECT_EQ(l.router.n, 16 * 112);
  EXPECT_EQ(Values(l.router)[16 * 112 - 1],
            Number(o.Tensor("model.layers.1.mlp.gate.weight"), 16 * 112 - 1));
  EXPECT_EQ(l.k_bias.n, 64);
}

TEST(StoredModelTest, Fp8BlockValues) {
  KT_NEEDS_FIXTURES();
  Opened qwen(kFixtures + "/qwen3_moe-tp8-fp8");
  const std::string layer = "model.layers.0.";
  const StoredLayer& l = qwen.model.layers[0];
  ExpectFp8Block(qwen, l.q, layer + "self_attn.q_proj", 192, 256);
  ExpectFp8Block(qwen, l.experts[7].ffn.gate, layer + "mlp.experts.7.gate_proj", 192, 256);
  ExpectFp8Block(qwen, l.experts[7].ffn.down, layer + "mlp.experts.7.down_proj", 256, 192);
  EXPECT_EQ(l.q.view.scale, ScaleType::kBf16);

  Opened deepseek(kFixtures + "/deepseek_v32-fp8");
  const StoredLayer& d = deepseek.model.layers[1];
  const std::string mla = "model.layers.1.self_attn.";
  ExpectFp8Block(deepseek, d.kv_a, mla + "kv_a_proj_with_mqa", 64, 160);
  ExpectFp8Block(deepseek, d.kv_b, mla + "kv_b_proj", 256, 48);
  ExpectFp8Block(deepseek, d.index_q, mla + "indexer.wq_b", 320, 96);
  ExpectPlain(deepseek, d.index_weights, mla + "indexer.weights_proj.weight", 10, 160);
  EXPECT_EQ(d.index_k_norm_bias.n, 32);
  EXPECT_EQ(d.kv_a.view.scale, ScaleType::kF32);

  Opened next(kFixtures + "/qwen3_next-fp8");
  const StoredLayer& delta = next.model.layers[0];
  ExpectFp8Block(next, delta.delta_qkv, "model.layers.0.linear_attn.in_proj_qkvz", 576, 160);
  ExpectPlain(next, delta.delta_b, "model.layers.0.linear_attn.in_proj_ba.weight", 16, 160);
  ExpectFp8Block(next, delta.o, "model.layers.0.linear_attn.out_proj", 160, 192);
  EXPECT_EQ(delta.conv.n, 384 * 4);
  EXPECT_FALSE(delta.delta_z || delta.delta_a || delta.q);
  EXPECT_TRUE(delta.shared_gate);
}

TEST(StoredModelTest, Fp8ChannelValues) {
  KT_NEEDS_FIXTURES();
  Opened o(kFixtures + "/glm4_moe-fp8");
  const std::string module = "model.layers.2.mlp.experts.5.down_proj";
  const TensorInfo& w = o.Tensor(module + ".weight");
  const TensorInfo& s = o.Tensor(module + ".weight_scale");
  ExpectValues(o.model.layers[2].experts[5].ffn.down, 160, 72,
               [&](int r, int c) { return Number(w, int64_t{r} * 72 + c) * Number(s, r); });
}

TEST(StoredModelTest, PackedValues) {
  KT_NEEDS_FIXTURES();
  Opened kimi(kFixtures + "/kimi_k25-int4");
  ExpectPacked(kimi, kimi.model.layers[1].experts[2].ffn.up,
               "language_model.model.layers.1.mlp.experts.2.up_proj", 64, 128, 4, 32);
  ExpectPlain(kimi, kimi.model.lm_head, "language_model.lm_head.weight", 512, 128);
  Opened w4(kFixtures + "/qwen3_moe-w4a16");
  ExpectPacked(w4, w4.model.layers[1].experts[7].ffn.down, "model.layers.1.mlp.experts.7.down_proj",
               256, 256, 4, 128);
  Opened w8(kFixtures + "/qwen3_moe-w8a16");
  ExpectPacked(w8, w8.model.layers[0].experts[0].ffn.gate, "model.layers.0.mlp.experts.0.gate_proj",
               96, 128, 8, 128);
  ExpectPacked(w8, w8.model.layers[0].experts[0].ffn.down, "model.layers.0.mlp.experts.0.down_proj",
               128, 96, 8, 96);
}

TEST(StoredModelTest, Mxfp4ValuesAndBiases) {
  KT_NEEDS_FIXTURES();
  Opened o(kFixtures + "/gpt_oss-mxfp4");
  const std::string experts = "model.layers.3.mlp.experts.";
  const StoredExpert& e = o.model.layers[3].experts[11];
  ExpectMxfp4(o, e.ffn.gate, experts + "gate_up_proj", 11, 128, 2, 0, 128);
  ExpectMxfp4(o, e.ffn.up, experts + "gate_up_proj", 11, 128, 2, 1, 128);
  ExpectMxfp4(o, e.ffn.down, experts + "down_proj", 11, 128, 1, 0, 64);
  const TensorInfo& bias = o.Tensor(experts + "gate_up_proj_bias");
  const std::vector<float> gate = Values(e.gate_bias), up = Values(e.up_bias);
  ASSERT_EQ(gate.size(), 64u);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(gate[i], Number(bias, static_cast<int64_t>(11 * 128 + 2 * i)));
    EXPECT_EQ(up[i], Number(bias, static_cast<int64_t>(11 * 128 + 2 * i + 1)));
  }
  EXPECT_EQ(Values(e.down_bias)[127], Number(o.Tensor(experts + "down_proj_bias"), 11 * 128 + 127));
  EXPECT_EQ(o.model.layers[3].sinks.n, 6);
  EXPECT_EQ(o.model.layers[3].router_bias.n, 16);
  EXPECT_EQ(o.model.layers[3].o_bias.n, 128);
}

TEST(StoredModelTest, FusedValues) {
  KT_NEEDS_FIXTURES();
  Opened o(kFixtures + "/qwen3_5_moe");
  const std::string experts = "model.language_model.layers.2.mlp.experts.";
  const TensorInfo& gate_up = o.Tensor(experts + "gate_up_proj");
  const TensorInfo& down = o.Tensor(experts + "down_proj");
  const StoredFfn& ffn = o.model.layers[2].experts[9].ffn;
  const auto row = [&](int r) { return (int64_t{9} * 64 + r) * 128; };
  ExpectValues(ffn.gate, 32, 128, [&](int r, int c) { return Number(gate_up, row(r) + c); });
  ExpectValues(ffn.up, 32, 128, [&](int r, int c) { return Number(gate_up, row(32 + r) + c); });
  ExpectValues(ffn.down, 128, 32,
               [&](int r, int c) { return Number(down, (int64_t{9} * 128 + r) * 32 + c); });
  EXPECT_EQ(o.model.layers[2].a_log.tensor->dtype, DType::kF32);
  EXPECT_TRUE(o.model.layers[2].delta_z && o.model.layers[2].delta_a);
}

TEST(StoredModelTest, LayersThatShareASelectionHaveNoIndexer) {
  KT_NEEDS_FIXTURES();
  Opened o(kFixtures + "/glm_moe_dsa");
  EXPECT_TRUE(o.model.layers[1].index_q);
  EXPECT_FALSE(o.model.layers[2].index_q);
  BentCheckpoint bent(kFixtures + "/glm_moe_dsa");
  bent.config["index_topk_freq"] = 1;
  EXPECT_THAT(
      bent.Check(),
      HasSubstr("\"model.layers.2.self_attn.indexer.wq_b.weight\" (BF16 [256, 64]) is missing"));
}

// ---- Checkpoints made here. ----

TestTensor Tensor(DType dtype, std::vector<int64_t> shape, char fill = 0) {
  int64_t n = static_cast<int64_t>(DTypeBytes(dtype));
  for (int64_t size : shape) n *= size;
  return {dtype, std::move(shape), std::string(static_cast<size_t>(n), fill)};
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

// Zeros under these names; those of a layer and of an expert again for each.
BentCheckpoint Synthetic(const std::string& family, const Shapes& ends, const Shapes& layer,
                         const Shapes& expert) {
  Json config = ReadJsonFile(kConfigs + "/" + family + ".json").value();
  TestTensors tensors;
  for (const auto& [name, shape] : ends) tensors[name] = Tensor(DType::kBF16, shape);
  const ModelConfig model = ParseModelConfig(config, Json::object()).value();
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const std::string prefix = fmt::format("model.layers.{}.", l);
    for (const auto& [name, shape] : layer) tensors[prefix + name] = Tensor(DType::kBF16, shape);
    for (int e = 0; e < model.moes.at(0).num_experts; ++e) {
      for (const auto& [name, shape] : expert) {
        tensors[prefix + fmt::format(fmt::runtime(name), e)] = Tensor(DType::kBF16, shape);
      }
    }
  }
  return BentCheckpoint(std::move(tensors), std::move(config));
}

const Shapes kEnds128 = {{"model.embed_tokens.weight", {512, 128}},
                         {"lm_head.weight", {512, 128}},
                         {"model.norm.weight", {128}}};

TEST(StoredModelTest, MixtralFits) {
  BentCheckpoint bent = Synthetic("mixtral", kEnds128,
                                  {{"input_layernorm.weight", {128}},
                                   {"post_attention_layernorm.weight", {128}},
                                   {"self_attn.q_proj.weight", {128, 128}},
                                   {"self_attn.k_proj.weight", {64, 128}},
                                   {"self_attn.v_proj.weight", {64, 128}},
                                   {"self_attn.o_proj.weight", {128, 128}},
                                   {"block_sparse_moe.gate.weight", {8, 128}}},
                                  {{"block_sparse_moe.experts.{}.w1.weight", {48, 128}},
                                   {"block_sparse_moe.experts.{}.w2.weight", {128, 48}},
                                   {"block_sparse_moe.experts.{}.w3.weight", {48, 128}}});
  EXPECT_EQ(bent.Check(), "fits");
  bent.tensors.erase("model.layers.3.block_sparse_moe.experts.7.w3.weight");
  EXPECT_THAT(bent.Check(), HasSubstr("experts.7.w3.weight\" (BF16 [48, 128]) is missing"));
}

TEST(StoredModelTest, Qwen2MoeFits) {
  BentCheckpoint bent = Synthetic("qwen2_moe", kEnds128,
                                  {{"input_layernorm.weight", {128}},
                                   {"post_attention_layernorm.weight", {128}},
                                   {"self_attn.q_proj.weight", {128, 128}},
                                   {"self_attn.k_proj.weight", {128, 128}},
                                   {"self_attn.v_proj.weight", {128, 128}},
                                   {"self_attn.q_proj.bias", {128}},
                                   {"self_attn.k_proj.bias", {128}},
                                   {"self_attn.v_proj.bias", {128}},
                                   {"self_attn.o_proj.weight", {128, 128}},
                                   {"mlp.gate.weight", {16, 128}},
                                   {"mlp.shared_expert.gate_proj.weight", {80, 128}},
                                   {"mlp.shared_expert.up_proj.weight", {80, 128}},
                                   {"mlp.shared_expert.down_proj.weight", {128, 80}},
                                   {"mlp.shared_expert_gate.weight", {1, 128}}},
                                  {{"mlp.experts.{}.gate_proj.weight", {32, 128}},
                                   {"mlp.experts.{}.up_proj.weight", {32, 128}},
                                   {"mlp.experts.{}.down_proj.weight", {128, 32}}});
  EXPECT_EQ(bent.Check(), "fits");
  bent.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = Tensor(DType::kF32, {16});
  EXPECT_EQ(bent.Check(), "fits") << "old checkpoints carry what follows from config.json";
}

// A BF16 gpt-oss keeps its fused experts transposed.
TEST(StoredModelTest, TransposedFusedExpertsFit) {
  BentCheckpoint bent = Synthetic("gpt_oss-mxfp4", kEnds128,
                                  {{"input_layernorm.weight", {128}},
                                   {"post_attention_layernorm.weight", {128}},
                                   {"self_attn.q_proj.weight", {192, 128}},
                                   {"self_attn.k_proj.weight", {64, 128}},
                                   {"self_attn.v_proj.weight", {64, 128}},
                                   {"self_attn.o_proj.weight", {128, 192}},
                                   {"self_attn.q_proj.bias", {192}},
                                   {"self_attn.k_proj.bias", {64}},
                                   {"self_attn.v_proj.bias", {64}},
                                   {"self_attn.o_proj.bias", {128}},
                                   {"self_attn.sinks", {6}},
                                   {"mlp.router.weight", {16, 128}},
                                   {"mlp.router.bias", {16}},
                                   {"mlp.experts.gate_up_proj", {16, 128, 128}},
                                   {"mlp.experts.gate_up_proj_bias", {16, 128}},
                                   {"mlp.experts.down_proj", {16, 64, 128}},
                                   {"mlp.experts.down_proj_bias", {16, 128}}},
                                  {});
  bent.config.erase("quantization_config");
  TestTensor& gate_up = bent.tensors["model.layers.1.mlp.experts.gate_up_proj"];
  for (size_t i = 0; i < gate_up.data.size(); i += 2) {
    gate_up.data[i] = static_cast<char>(i / 2 % 251);
    gate_up.data[i + 1] = static_cast<char>(60 + i / 512 % 7);
  }
  ASSERT_EQ(bent.Check(), "fits");
  bent.dir.Write("config.json", bent.config.dump());
  Opened o(bent.dir.path());
  const TensorInfo& stored = o.Tensor("model.layers.1.mlp.experts.gate_up_proj");
  const StoredFfn& ffn = o.model.layers[1].experts[5].ffn;
  const auto at = [&](int in, int out) { return (int64_t{5} * 128 + in) * 128 + out; };
  ExpectValues(ffn.gate, 64, 128, [&](int r, int c) { return Number(stored, at(c, 2 * r)); });
  ExpectValues(ffn.up, 64, 128, [&](int r, int c) { return Number(stored, at(c, 2 * r + 1)); });
  EXPECT_EQ(ffn.down.view.n, 128);
  EXPECT_EQ(ffn.down.view.k, 64);

  bent.config["quantization_config"] = {{"quant_method", "mxfp4"}};
  bent.tensors.erase("model.layers.1.mlp.experts.down_proj");
  EXPECT_THAT(bent.Check(),
              HasSubstr("experts.down_proj_blocks\" (U8 [16, 128, 2, 16]) is missing"));
}

const Json kFp8Config = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
const Json kInt4Config = {{"quant_method", "compressed-tensors"},
                          {"format", "pack-quantized"},
                          {"config_groups",
                           {{"group_0",
                             {{"targets", {"Linear"}},
                              {"weights",
                               {{"num_bits", 4},
                                {"type", "int"},
                                {"strategy", "group"},
                                {"group_size", 32},
                                {"symmetric", true}}}}}}}};

// Stores a matrix of `tensors` in another scheme, with values of no meaning.
void MakeFp8(TestTensors& tensors, const std::string& module) {
  TestTensor& w = tensors.at(module + ".weight");
  tensors[module + ".weight_scale_inv"] =
      Tensor(DType::kF32, {(w.shape[0] + 127) / 128, (w.shape[1] + 127) / 128});
  w = Tensor(DType::kF8E4M3, w.shape, 'x');
}
void MakeInt4(TestTensors& tensors, const std::string& module) {
  const auto shape = tensors.at(module + ".weight").shape;
  tensors.erase(module + ".weight");
  tensors[module + ".weight_packed"] = Tensor(DType::kI32, {shape[0], shape[1] / 8}, 'x');
  tensors[module + ".weight_scale"] = Tensor(DType::kBF16, {shape[0], shape[1] / 32});
  TestTensor stored = Tensor(DType::kI64, {2});
  std::memcpy(stored.data.data(), shape.data(), 16);
  tensors[module + ".weight_shape"] = stored;
}

TEST(StoredModelTest, QuantisedMatricesNeedADeclaration) {
  BentCheckpoint bent = Bent();
  MakeFp8(bent.tensors, kExpert + "up_proj");
  EXPECT_THAT(
      bent.Check(),
      HasSubstr("up_proj.weight\" is F8_E4M3 [32, 128], stored as FP8 with block scales, but "
                "config.json has no quantization_config"));
  bent.config["quantization_config"] = kInt4Config;
  EXPECT_THAT(bent.Check(), HasSubstr("but config.json declares only INT4 group 32"));
  bent.config["quantization_config"] = kFp8Config;
  EXPECT_EQ(bent.Check(), "fits") << "the other matrices are plain though the rule covers them";
  bent.config["quantization_config"]["modules_to_not_convert"] = {"experts"};
  EXPECT_EQ(bent.Check(), "fits") << "the tensors are trusted, not the list";
  MakeInt4(bent.tensors, kExpert + "down_proj");
  EXPECT_THAT(bent.Check(),
              HasSubstr("stored as packed integers, but config.json declares only FP8 "
                        "block 128x128"));
}

TEST(StoredModelTest, ScalesHaveToFit) {
  BentCheckpoint bent = Bent();
  bent.config["quantization_config"] = kFp8Config;
  MakeFp8(bent.tensors, kExpert + "up_proj");
  const std::string name = kExpert + "up_proj.weight_scale_inv";
  bent.tensors[name] = Tensor(DType::kF32, {1, 2});
  EXPECT_THAT(bent.Check(), HasSubstr("tensor \"" + name +
                                      "\" is F32 [1, 2], expected F32 [1, 1] "
                                      "for the scales of FP8 block 128x128"));
  bent.tensors[name] = Tensor(DType::kI8, {1, 1});
  EXPECT_THAT(bent.Check(), HasSubstr("weight_scale_inv\" is I8, which no engine serves there"));
  bent.tensors[name] = Tensor(DType::kF8E8M0, {1, 1});
  EXPECT_EQ(bent.Check(), "fits");
  bent.tensors.erase(name);
  EXPECT_THAT(bent.Check(), HasSubstr("\"" + name + "\" (F32 [1, 1]) is missing"));
  bent.tensors[kExpert + "up_proj.weight_scale"] = Tensor(DType::kF32, {1, 1});
  EXPECT_EQ(bent.Check(), "fits") << "block scales go by both names";
}

TEST(StoredModelTest, ChannelScalesMayLackTheirLastDimension) {
  BentCheckpoint bent = Bent();
  bent.config["quantization_config"] =
      ReadJsonFile(kConfigs + "/glm4_moe-fp8.json").value()["quantization_config"];
  MakeFp8(bent.tensors, kExpert + "up_proj");
  bent.tensors.erase(kExpert + "up_proj.weight_scale_inv");
  const std::string name = kExpert + "up_proj.weight_scale";
  for (const TestTensor& scales : {Tensor(DType::kBF16, {32}), Tensor(DType::kF32, {32, 1})}) {
    bent.tensors[name] = scales;
    EXPECT_EQ(bent.Check(), "fits");
  }
  bent.tensors[name] = Tensor(DType::kF32, {1});
  EXPECT_THAT(bent.Check(), HasSubstr("is F32 [1], expected F32 [32, 1] for the scales of FP8 per "
                                      "channel"));
}

TEST(StoredModelTest, PackedMatricesHaveToFit) {
  BentCheckpoint bent = Bent();
  bent.config["quantization_config"] = kInt4Config;
  const std::string module = kExpert + "up_proj";
  MakeInt4(bent.tensors, module);
  EXPECT_EQ(bent.Check(), "fits");
  const TestTensors sound = bent.tensors;
  bent.tensors[module + ".weight_packed"] = Tensor(DType::kU8, {32, 64});
  EXPECT_EQ(bent.Check(), "fits") << "the same bytes as U8";
  bent.tensors[module + ".weight_packed"] = Tensor(DType::kI32, {16, 32});
  EXPECT_THAT(bent.Check(), HasSubstr("weight_packed\" is I32 [16, 32], expected I32 [32, 16] for "
                                      "INT4 group 32 of 128 columns"));
  bent.tensors = sound;
  std::swap(bent.tensors[module + ".weight_shape"].data[0],
            bent.tensors[module + ".weight_shape"].data[8]);
  EXPECT_THAT(bent.Check(), HasSubstr("weight_shape\" says [128, 32], expected [32, 128]"));
  bent.tensors = sound;
  bent.tensors[module + ".weight_scale"] = Tensor(DType::kBF16, {32, 1});
  EXPECT_THAT(bent.Check(), HasSubstr("weight_scale\" is BF16 [32, 1], expected BF16 [32, 4]"));
  bent.tensors = sound;
  bent.tensors[module + ".weight_zero_point"] = Tensor(DType::kI32, {4, 4});
  EXPECT_THAT(bent.Check(), HasSubstr("weight_zero_point\" is not expected: asymmetric weights are "
                                      "not served"));
  bent.tensors = sound;
  bent.tensors[module + ".weight"] = Tensor(DType::kBF16, {32, 128});
  EXPECT_THAT(bent.Check(), HasSubstr("is there both as .weight and .weight_packed"));
  bent.tensors = sound;
  for (const char* part : {".weight_packed", ".weight_scale", ".weight_shape"}) {
    bent.tensors.erase(module + part);
  }
  EXPECT_THAT(bent.Check(),
              HasSubstr("\"" + module + ".weight_packed\" (I32 [32, 16]) is missing"));
}

TEST(StoredModelTest, WhatOtherFormatsCarryIsExplained) {
  for (const auto& [name, reason] : std::map<std::string, std::string>{
           {"qweight", "AWQ and GPTQ packing is not served"},
           {"weight_g_idx", "weights in an order of activations are not served"},
           {"input_scale", "stored scales of activations are not served"}}) {
    BentCheckpoint bent = Bent();
    bent.tensors[kExpert + "up_proj." + name] = Tensor(DType::kI32, {4, 4});
    EXPECT_THAT(bent.Check(), HasSubstr(name + "\" is not expected: " + reason));
  }
}

TEST(StoredModelTest, ExpertsAloneNeedNothingElse) {
  BentCheckpoint bent = Bent();
  std::erase_if(bent.tensors,
                [](const auto& item) { return item.first.find(".experts.") == std::string::npos; });
  EXPECT_EQ(bent.Check(StoredParts::kExperts), "fits");
  EXPECT_THAT(bent.Check(), HasSubstr("is missing"));
  bent.tensors["stranger"] = Tensor(DType::kU8, {1});
  EXPECT_THAT(bent.Check(StoredParts::kExperts), HasSubstr("\"stranger\" is not expected"));
  bent.tensors.erase("stranger");
  bent.tensors.erase(kExpert + "up_proj.weight");
  EXPECT_THAT(bent.Check(StoredParts::kExperts),
              HasSubstr("up_proj.weight\" (BF16 [32, 128]) is missing"));
}

TEST(StoredModelTest, ALayerOfOneExpertIsValid) {
  BentCheckpoint bent = Bent();
  bent.config.update({{"num_experts", 1}, {"num_experts_per_tok", 1}});
  std::erase_if(bent.tensors, [](const auto& item) {
    return item.first.find(".experts.") != std::string::npos &&
           item.first.find(".experts.0.") == std::string::npos;
  });
  for (auto& [name, t] : bent.tensors) {
    if (!name.ends_with(".mlp.gate.weight")) continue;
    t.shape[0] = 1;
    t.data.resize(t.data.size() / 16);
  }
  EXPECT_EQ(bent.Check(), "fits");
}

TEST(StoredModelTest, DroppedExpertIsNamed) {
  BentCheckpoint bent = Bent();
  for (const char* part : {"gate", "up", "down"})
    bent.tensors.erase(fmt::format("{}{}_proj.weight", kExpert, part));
  EXPECT_THAT(bent.Check(),
              HasSubstr("tensor \"" + kExpert +
                        "gate_proj.weight\" (BF16 [32, 128]) is missing (and 2 more missing)"));
}

TEST(StoredModelTest, SwappedShapesAreNamed) {
  BentCheckpoint bent = Bent();
  auto& shape = bent.tensors[kExpert + "up_proj.weight"].shape;
  std::swap(shape[0], shape[1]);
  EXPECT_THAT(bent.Check(),
              HasSubstr("model.safetensors: tensor \"" + kExpert +
                        "up_proj.weight\" is BF16 [128, 32], expected BF16 [32, 128]"));
}

TEST(StoredModelTest, UnexpectedTensorIsNamed) {
  BentCheckpoint bent = Bent();
  bent.tensors[kExpert + "up_proj.weight_scale_inv"] = {DType::kF32, {1, 1}, "abcd"};
  EXPECT_THAT(bent.Check(),
              HasSubstr("tensor \"" + kExpert + "up_proj.weight_scale_inv\" is not expected"));
}

TEST(StoredModelTest, OneFaultOfEachKindIsReported) {
  BentCheckpoint bent = Bent();
  bent.tensors.erase("lm_head.weight");
  bent.tensors["x"] = {DType::kU8, {1}, "a"};
  bent.tensors["model.norm.weight"].shape = {2, 64};
  bent.tensors[kExpert + "up_proj.weight"].dtype = DType::kI16;
  std::string message = bent.Check();
  for (const char* part :
       {"is missing", "\"x\" is not expected", "is BF16 [2, 64], expected BF16 [128]", "is I16"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
}

TEST(StoredModelTest, PlainMatricesMayBeF16OrF32) {
  BentCheckpoint bent = Bent();
  for (const char* name : {"model.norm.weight", "model.layers.2.mlp.gate.weight",
                           "model.layers.1.mlp.experts.3.up_proj.weight"}) {
    TestTensor& t = bent.tensors.at(name);
    t.dtype = DType::kF32;
    t.data.resize(t.data.size() * 2);
  }
  bent.tensors.at(kExpert + "down_proj.weight").dtype = DType::kF16;
  EXPECT_EQ(bent.Check(), "fits");
  TestTensor& t = bent.tensors.at(kExpert + "gate_proj.weight");
  t.dtype = DType::kI16;
  EXPECT_THAT(bent.Check(), HasSubstr("gate_proj.weight\" is I16, which no engine serves there; "
                                      "expected BF16, F16 or F32"));
}

TEST(StoredModelTest, TiedEmbeddingsHaveNoHead) {
  BentCheckpoint bent = Bent();
  bent.config["tie_word_embeddings"] = true;
  EXPECT_THAT(bent.Check(), HasSubstr("tensor \"lm_head.weight\" is not expected, as config.json "
                                      "says tie_word_embeddings true"));
  bent.tensors.erase("lm_head.weight");
  EXPECT_EQ(bent.Check(), "fits");
}

TEST(StoredModelTest, PredictionLayersAreSkippedOnlyWhereTheConfigHasThem) {
  BentCheckpoint bent = Bent("glm4_moe");
  ASSERT_TRUE(bent.tensors.contains("model.layers.4.input_layernorm.weight"));
  EXPECT_EQ(bent.Check(), "fits");
  bent.config["num_nextn_predict_layers"] = 0;
  EXPECT_THAT(bent.Check(), HasSubstr("\"model.layers.4."));
  bent.config["num_nextn_predict_layers"] = 1;
  bent.config["num_hidden_layers"] = 3;
  EXPECT_THAT(bent.Check(),
              AllOf(HasSubstr("\"model.layers.4."), Not(HasSubstr("\"model.layers.3."))));
}

}  // namespace
}  // namespace kt
