// SPDX-License-Identifier: Apache-2.0
#include "common/topology/topology.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "common/base/status.h"

namespace kt::topology {
namespace {

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

Bitmap NewBitmap() { return Bitmap(hwloc_bitmap_alloc()); }

std::vector<int> Members(hwloc_const_bitmap_t set) {
  std::vector<int> members;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) members.push_back(i);
  return members;
}

std::vector<hwloc_obj_t> ObjectsOf(hwloc_topology_t topology, hwloc_obj_type_t type) {
  std::vector<hwloc_obj_t> objects;
  for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(topology, type, o)) != nullptr;)
    objects.push_back(o);
  return objects;
}

absl::Status HwlocError(const char* what) {
  return Internal("{}: hwloc: {}", what, std::strerror(errno));
}

// The node a core belongs to: several may be local to it (fast and slow memory); then the one for
// the fewest CPUs, with memory, lowest id.
hwloc_obj_t LocalNode(const std::vector<hwloc_obj_t>& nodes, hwloc_const_cpuset_t cpus) {
  const auto rank = [](hwloc_obj_t node) {
    return std::tuple(hwloc_bitmap_weight(node->cpuset), node->attr->numanode.local_memory == 0,
                      node->os_index);
  };
  hwloc_obj_t best = nullptr;
  for (hwloc_obj_t node : nodes) {
    if (hwloc_bitmap_intersects(node->cpuset, cpus) && (best == nullptr || rank(node) < rank(best)))
      best = node;
  }
  return best;
}

absl::StatusOr<Bitmap> AllowedPus(hwloc_topology_t topology, const std::string& list) {
  Bitmap allowed = NewBitmap();
  if (!list.empty()) {
    if (hwloc_bitmap_list_sscanf(allowed.get(), list.c_str()) != 0) {
      return InvalidArgument("allowed CPUs '{}': expected a list such as 0-3,8", list);
    }
  } else if (hwloc_get_cpubind(topology, allowed.get(), HWLOC_CPUBIND_THREAD) != 0) {
    hwloc_bitmap_fill(allowed.get());  // an emulator that cannot tell
  }
  hwloc_bitmap_and(allowed.get(), allowed.get(), hwloc_topology_get_allowed_cpuset(topology));
  if (hwloc_bitmap_iszero(allowed.get())) {
    return FailedPrecondition("CPU affinity: the mask '{}' holds no CPU of this machine", list);
  }
  return allowed;
}

std::vector<Cache> DataCaches(hwloc_topology_t topology) {
  std::vector<Cache> caches;
  for (hwloc_obj_type_t type :
       {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE}) {
    const auto objects = ObjectsOf(topology, type);
    if (objects.empty()) continue;
    const auto& cache = objects[0]->attr->cache;
    caches.push_back({static_cast<int>(cache.depth), static_cast<int64_t>(cache.size),
                      static_cast<int>(objects.size())});
  }
  return caches;
}

}  // namespace

absl::StatusOr<Topology> Topology::Load(const TopologyOptions& options) {
  Topology result;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return HwlocError("topology init");
  result.hwloc_.reset(topology);
  if (!options.xml_file.empty() &&
      hwloc_topology_set_xml(topology, options.xml_file.c_str()) != 0) {
    return InvalidArgument("topology file {}: {}", options.xml_file, std::strerror(errno));
  }
  if (hwloc_topology_load(topology) != 0) return HwlocError("topology load");

  KT_ASSIGN_OR_RETURN(const Bitmap allowed, AllowedPus(topology, options.allowed_pus));
  const auto numa_objects = ObjectsOf(topology, HWLOC_OBJ_NUMANODE);
  for (hwloc_obj_t node : numa_objects) {
    result.nodes_.push_back({static_cast<int>(node->os_index),
                             static_cast<int64_t>(node->attr->numanode.local_memory),
                             {}});
  }
  std::sort(result.nodes_.begin(), result.nodes_.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });

  // A virtual machine may show threads without cores: then each of them counts as one.
  auto core_objects = ObjectsOf(topology, HWLOC_OBJ_CORE);
  if (core_objects.empty()) core_objects = ObjectsOf(topology, HWLOC_OBJ_PU);
  const Bitmap pus = NewBitmap();
  for (hwloc_obj_t object : core_objects) {
    hwloc_bitmap_and(pus.get(), object->cpuset, allowed.get());
    if (hwloc_bitmap_iszero(pus.get())) continue;
    const hwloc_obj_t node = LocalNode(numa_objects, pus.get());
    result.cores_.push_back(
        {node == nullptr ? result.nodes_[0].id : static_cast<int>(node->os_index),
         Members(pus.get())});
  }
  std::sort(result.cores_.begin(), result.cores_.end(), [](const Core& a, const Core& b) {
    return std::tie(a.node, a.pus) < std::tie(b.node, b.pus);
  });
  for (NumaNode& node : result.nodes_) {
    for (size_t i = 0; i < result.cores_.size(); ++i) {
      if (result.cores_[i].node == node.id) node.cores.push_back(static_cast<int>(i));
    }
  }
  result.caches_ = DataCaches(topology);
  return result;
}

const NumaNode* Topology::FindNode(int id) const {
  const auto it = std::find_if(nodes_.begin(), nodes_.end(),
                               [id](const NumaNode& node) { return node.id == id; });
  return it == nodes_.end() ? nullptr : &*it;
}

std::vector<int> Topology::allowed_pus() const {
  std::vector<int> pus;
  for (const Core& core : cores_) pus.insert(pus.end(), core.pus.begin(), core.pus.end());
  std::sort(pus.begin(), pus.end());
  return pus;
}

absl::Status Topology::BindThread(std::span<const int> pus) const {
  const Bitmap set = NewBitmap();
  for (int pu : pus) hwloc_bitmap_set(set.get(), static_cast<unsigned>(pu));
  if (hwloc_set_cpubind(hwloc_.get(), set.get(), HWLOC_CPUBIND_THREAD) != 0) {
    return Unavailable("binding a thread to {} CPUs: {}", pus.size(), std::strerror(errno));
  }
  return absl::OkStatus();
}

absl::Status Topology::BindMemory(void* data, size_t bytes, int node) const {
  if (node < 0 || bytes == 0) return absl::OkStatus();
  const Bitmap set = NewBitmap();
  hwloc_bitmap_set(set.get(), static_cast<unsigned>(node));
  if (FindNode(node) == nullptr)
    return InvalidArgument("binding memory to NUMA node {}: there is no such node", node);
  if (hwloc_set_area_membind(hwloc_.get(), data, bytes, set.get(), HWLOC_MEMBIND_BIND,
                             HWLOC_MEMBIND_BYNODESET) != 0) {
    return Unavailable("binding {} bytes to NUMA node {}: {}", bytes, node, std::strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace kt::topology
