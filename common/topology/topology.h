// SPDX-License-Identifier: Apache-2.0
// The machine as this process may use it: CPUs inside the affinity mask and cpuset, physical cores,
// NUMA nodes, caches. Loaded once in main through hwloc and passed on; HWLOC_XMLFILE shows a
// made-up machine, on which binding does nothing.
//
// Units    CPU numbers (PUs) and node ids are those of the operating system
// Threads  immutable after Load, every method may be called from any thread
// Errors   Load fails only when hwloc cannot describe the machine; binding fails softly (see below)
#ifndef KT_COMMON_TOPOLOGY_TOPOLOGY_H_
#define KT_COMMON_TOPOLOGY_TOPOLOGY_H_

#include <hwloc.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kt::topology {

struct Core {
  int node = 0;          // id of the NUMA node it is local to
  std::vector<int> pus;  // allowed hardware threads, ascending; never empty
};

struct NumaNode {
  int id = 0;
  int64_t memory_bytes = 0;  // 0: CPUs without memory of their own
  std::vector<int>
      cores;  // indices into Topology::cores(); empty: memory only, or none of its CPUs is allowed
};

struct Cache {
  int level = 0;      // data or unified
  int64_t bytes = 0;  // of one instance
  int instances = 0;
};

struct TopologyOptions {
  std::string xml_file;     // describes another machine; empty: this one (or HWLOC_XMLFILE)
  std::string allowed_pus;  // list such as "0-3,8" that takes the place of the calling thread's
                            // affinity mask; empty: that mask
};

class Topology {
 public:
  static absl::StatusOr<Topology> Load(const TopologyOptions& options = {});

  const std::vector<Core>& cores() const { return cores_; }      // ordered by node, then by number
  const std::vector<NumaNode>& nodes() const { return nodes_; }  // ascending ids, at least one
  const std::vector<Cache>& caches() const { return caches_; }   // ascending levels
  const NumaNode* FindNode(int id) const;                        // nullptr: no such node
  std::vector<int> allowed_pus() const;                          // ascending

  // False for a made-up machine.
  bool is_this_machine() const { return hwloc_topology_is_thissystem(hwloc_.get()) != 0; }

  // Keeps the calling thread on these CPUs. Errors (a sandbox or emulator that forbids it) leave
  // the thread as it was.
  absl::Status BindThread(std::span<const int> pus) const;

  // Places the pages of [data, data + bytes) that are touched from now on in the memory of a node;
  // node -1 does nothing. The range is widened to whole pages. On error the pages go where the
  // kernel likes: slower, never wrong.
  absl::Status BindMemory(void* data, size_t bytes, int node) const;

 private:
  struct Destroy {
    void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
  };

  std::unique_ptr<hwloc_topology, Destroy> hwloc_;
  std::vector<Core> cores_;
  std::vector<NumaNode> nodes_;
  std::vector<Cache> caches_;
};

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_TOPOLOGY_H_
