// Structures of libibverbs against what C says of them.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { Layout } from '#lib/abi/layout.js';
import * as structs from '#lib/native/verbs/c-structs.js';
import { asyncEvents, completionStatuses } from '#lib/native/verbs/c-structs.js';

/**
 * By offsetof and sizeof, with the headers of rdma-core 44 on x86-64. Where the size is missing, weftline stops reading before the end.
 */
const recorded: Readonly<
  Record<string, { readonly size?: number; readonly offsets: Readonly<Record<string, number>> }>
> = {
  ibvDevice: { offsets: { nodeType: 16, transport: 20, name: 24 } },
  ibvContext: {
    size: 328,
    offsets: {
      device: 0,
      pollCq: 8 + 88,
      requestNotifyCq: 8 + 96,
      postSrqReceive: 8 + 160,
      postSend: 8 + 200,
      postReceive: 8 + 208,
      commandDescriptor: 264,
      asyncDescriptor: 268,
      completionVectors: 272,
      abiCompatibility: 320,
    },
  },
  // Without the ibv_context that ends it.
  verbsContext: { size: 320, offsets: { queryPort: 0, bytes: 312 } },
  ibvPd: { size: 16, offsets: { context: 0, handle: 8 } },
  ibvMr: { size: 48, offsets: { address: 16, bytes: 24, handle: 32, localKey: 36, remoteKey: 40 } },
  ibvCompletionChannel: { offsets: { descriptor: 8 } },
  ibvCq: { offsets: { channel: 8, userData: 16, entries: 28 } },
  ibvQp: { offsets: { handle: 48, number: 52, state: 56, type: 60 } },
  ibvSge: { size: 16, offsets: { address: 0, bytes: 8, localKey: 12 } },
  ibvSendWr: {
    size: 128,
    offsets: {
      sequence: 0,
      next: 8,
      sgeList: 16,
      sgeCount: 24,
      opcode: 28,
      flags: 32,
      immediate: 36,
      remoteAddress: 40,
      remoteKey: 48,
      queueKey: 52,
      swap: 56,
      atomicKey: 64,
    },
  },
  ibvReceiveWr: { size: 32, offsets: { sequence: 0, next: 8, sgeList: 16, sgeCount: 24 } },
  ibvWc: {
    size: 48,
    offsets: {
      sequence: 0,
      status: 8,
      opcode: 12,
      vendorError: 16,
      bytes: 20,
      immediate: 24,
      queuePair: 28,
      sourceQueuePair: 32,
      flags: 36,
      pkeyIndex: 40,
      sourceLid: 42,
      serviceLevel: 44,
      pathBits: 45,
    },
  },
  ibvQpInitAttributes: {
    size: 64,
    offsets: {
      sendCq: 8,
      receiveCq: 16,
      srq: 24,
      maxSends: 32,
      maxReceives: 36,
      maxSendSges: 40,
      maxReceiveSges: 44,
      maxInlineBytes: 48,
      type: 52,
      signalAll: 56,
    },
  },
  ibvQpAttributes: {
    size: 144,
    offsets: {
      state: 0,
      currentState: 4,
      pathMtu: 8,
      queueKey: 16,
      receiveSequence: 20,
      sendSequence: 24,
      remoteQueuePair: 28,
      access: 32,
      otherCapacity: 36,
      remoteGid: 56,
      flowLabel: 56 + 16,
      gidIndex: 56 + 20,
      hopLimit: 56 + 21,
      trafficClass: 56 + 22,
      remoteLid: 56 + 24,
      serviceLevel: 56 + 26,
      pathBits: 56 + 27,
      staticRate: 56 + 28,
      isGlobal: 56 + 29,
      pathPort: 56 + 30,
      otherPath: 88,
      pkeyIndex: 120,
      draining: 125,
      maxReads: 126,
      maxRemoteReads: 127,
      minReceiverNotReadyTimer: 128,
      port: 129,
      timeout: 130,
      retries: 131,
      receiverNotReadyRetries: 132,
      rateLimit: 136,
    },
  },
  ibvAhAttributes: {
    size: 32,
    offsets: {
      flowLabel: 16,
      gidIndex: 20,
      hopLimit: 21,
      trafficClass: 22,
      remoteLid: 24,
      serviceLevel: 26,
      pathBits: 27,
      staticRate: 28,
      isGlobal: 29,
      pathPort: 30,
    },
  },
  ibvSrqInitAttributes: { size: 24, offsets: { maxReceives: 8, maxSges: 12, limit: 16 } },
  ibvAsyncEvent: { size: 16, offsets: { element: 0, type: 8 } },
  ibvGidEntry: { size: 32, offsets: { gid: 0, index: 16, port: 20, type: 24, interfaceIndex: 28 } },
  ibvDeviceAttributes: {
    size: 232,
    offsets: {
      nodeGuid: 64,
      systemImageGuid: 72,
      maxMrSize: 80,
      pageSizes: 88,
      vendorId: 96,
      maxQp: 108,
      maxQpWr: 112,
      maxSge: 120,
      maxCq: 128,
      maxCqe: 132,
      maxMr: 136,
      maxPd: 140,
      maxQpReads: 144,
      maxDeviceReads: 152,
      maxQpInitiatedReads: 156,
      atomics: 164,
      maxAh: 200,
      maxSrq: 212,
      maxSrqWr: 216,
      maxSrqSge: 220,
      maxPkeys: 224,
      ports: 227,
    },
  },
  ibvPortAttributes: {
    size: 52,
    offsets: {
      maxMtu: 4,
      activeMtu: 8,
      gids: 12,
      capabilities: 16,
      maxMessageBytes: 20,
      lid: 34,
      subnetManagerLid: 36,
      lidMask: 38,
      virtualLanes: 39,
      subnetManagerLevel: 40,
      activeWidth: 43,
      activeSpeed: 44,
      physicalState: 45,
      linkLayer: 46,
      flags: 47,
      moreCapabilities: 48,
    },
  },
};

test('each structure has the size and the offsets that C gives it', () => {
  const layouts = Object.entries<unknown>(structs).filter((entry): entry is [string, Layout] => isLayout(entry[1]));
  assert.deepEqual(Object.keys(recorded).toSorted(), layouts.map(([name]) => name).toSorted());
  for (const [name, layout] of layouts) {
    const { size, offsets } = recorded[name]!;
    if (size !== undefined) assert.equal(layout.size, size, name);
    const own: Readonly<Record<string, number>> = layout.offset;
    for (const [field, offset] of Object.entries(offsets)) assert.equal(own[field], offset, `${name}.${field}`);
  }
});

test('the tables of words are as long as their enumerations', () => {
  assert.equal(completionStatuses.length, 24);
  assert.equal(completionStatuses[12][0], 'IBV_WC_RETRY_EXC_ERR');
  assert.equal(completionStatuses[21][0], 'IBV_WC_GENERAL_ERR');
  assert.equal(asyncEvents.length, 20);
  assert.equal(asyncEvents[8][0], 'IBV_EVENT_DEVICE_FATAL');
  assert.equal(asyncEvents[19][0], 'IBV_EVENT_WQ_FATAL');
});

function isLayout(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'alignment' in value;
}
