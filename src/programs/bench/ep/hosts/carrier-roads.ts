// What carries the bytes of a carrier's turn: the links of CPU ranks from tensor to window, the proxy of GPUs between their
// pinned windows.
import { startCall } from '../../../../core/deadline.ts';
import { WeftlineError } from '../../../../core/errors.ts';
import type { CpuDevice } from '../../../../device/cpu/cpu-device.ts';
import { pollUntil } from '../../../../device/cuda/poll.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import type { HostNetwork } from '../../../../group/network/host-network.ts';
import { ROW_WINDOW } from '../../../../ep/across-hosts/host-exchange.ts';
import type { CudaHostNetwork } from '../../../../ep/across-hosts/cuda-host-network.ts';
import type { EpBuffer } from '../../../../ep/index.ts';
import type { CarrierRoad } from './carrier.ts';

export interface CpuRoadOptions {
  readonly device: CpuDevice;
  readonly buffer: EpBuffer;
  readonly network: HostNetwork;
  /** Where the bytes come from; as many rows as any rank has tokens. */
  readonly source: Tensor<'bf16'>;
}

/** From a tensor, straight into the receivers' regions of rows. */
export function cpuRoad({ device, buffer, network, source }: CpuRoadOptions): CarrierRoad {
  const { offset } = buffer.size.regions.rows;
  const slotBytes = source.bytes;
  const { group } = network;
  const regionAt = buffer.peerRowAddress(group.rank, 0);
  return {
    routes: network.routes,
    channels: network.channels,
    // Nothing is under way between two cases.
    begin: async () => {
      if (!network.hasMemory(device.memory.buffer.byteLength)) await network.useMemory();
    },
    put: ({ peer, slot }, { channel, first, bytes }) => {
      const to = network.offsetAt(peer, ROW_WINDOW, offset + slot * slotBytes + first);
      network.link(peer).queues[channel]!.put(source.address + first, ROW_WINDOW, to, bytes);
    },
    delivered: () => {
      const waiting = {
        isDone: () => network.isDelivered,
        awaits: (peer: number) => !network.link(peer).isDelivered,
        describe: () => `What rank ${group.worldRank} sent in the carrier's turn was not delivered`,
      };
      return network.until(waiting, startCall({}, group.settings.timeoutMs));
    },
    source: ({ bytes }) => device.hostView('u8', source.address, bytes),
    arrival: (slot, bytes) => device.hostView('u8', regionAt + slot * slotBytes, bytes),
  };
}

/** Between the slots of the pinned windows that the same rows go through in a call. */
export function pinnedRoad(
  network: CudaHostNetwork,
  direction: 'there' | 'back',
  { timeoutMs }: { readonly timeoutMs: number },
): CarrierRoad {
  const [from, to] = direction === 'there' ? (['out', 'in'] as const) : (['in', 'out'] as const);
  const { proxy } = network;
  return {
    routes: network.routes,
    channels: proxy.channels,
    put: (put, { channel, first, bytes }) => {
      const [source, target] = [network.slotOffset(from, put.from), network.slotOffset(to, put.slot)];
      if (proxy.put(put.peer, channel, { from: source + first, to: target + first, bytes })) return;
      throw new WeftlineError('WL_BUSY', 'The host has more puts under way than its queue holds');
    },
    delivered: async () => {
      proxy.wake();
      await pollUntil(() => proxy.isDelivered, { timeoutMs, what: 'What the carrier sent in its turn' });
    },
    source: (put) => network.hostView(network.slotOffset(from, put.from), put.bytes),
    arrival: (slot, bytes) => network.hostView(network.slotOffset(to, slot), bytes),
  };
}
