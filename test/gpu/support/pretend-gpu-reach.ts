// Preloaded by ranks whose network side is to lie in memory of their GPU, without an RDMA device: multipath carries it in place
// of verbs, and stages it.
import { CudaHostNetwork } from '#lib/ep/across-hosts/cuda-host-network.js';

CudaHostNetwork.findReach = async () => ({
  memory: { way: 'peermem', reason: 'a test pretends it', flush: 'none' },
  linkLayer: 'pretended',
  backends: ['multipath'],
});
