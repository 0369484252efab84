// What kernels share with the host that carries out their puts: queues of commands, requests, and the kernels' arguments.
import { defineLayout } from './layout.ts';

// The queue: 16-byte commands, a word that says what is delivered.

/**
 * What a command asks for: to put bytes from memory, to add to a counter, or to write 8 bytes that the command holds itself
 * at a multiple of 8. `store` is a put without a source; `set` a signal whose number replaces the sum: the writer waits for
 * no command behind it.
 */
export const queueCommandKinds = { set: 0, put: 1, signal: 2, store: 3 } as const;

export const COMMAND_BYTES = 16;

/** Most requests of a host, remote ranges of a request, and bytes that an offset or a size can name. */
export const MAX_DEVICE_REQUESTS = 4096;
export const MAX_REQUEST_REMOTES = 64;
export const MAX_COMMAND_OFFSET: number = 2 ** 36;
export const MAX_COMMAND_BYTES: number = 2 ** 33;

/**
 * Where each part of a command begins, in bits of its words. A command is two halves of 8 bytes, each of which is written
 * at once and begins with the *phase*: 1 in the first lap round the ring, 0 in the second, and so on. A half belongs to the
 * command that is looked for when its phase is that of the lap, so memory of zeros holds no command.
 *
 * word 0: phase 1, kind 2, remote 6, request 12, high bits of source 4, target 5 and bytes 1, deferred 1
 * word 1: low 32 bits of the source offset; of others than puts, the low half of their number
 * word 2: phase 1, low 31 bits of the target offset
 * word 3: low 32 bits of the size; of others than puts, the high half of their number
 *
 * The host takes a deferred command together with the next one that is not, or when the ring has no room for that one.
 */
export const commandBits = {
  kind: 1,
  remote: 3,
  request: 9,
  sourceHigh: 21,
  targetHigh: 25,
  bytesHigh: 30,
  deferred: 31,
  targetLow: 1,
} as const;

/**
 * The head of a queue in host memory that both reach; the ring of commands follows. Each word has a cache line.
 *
 * - `delivered`: commands whose effect is visible at their target, in the order they were pushed; wraps. The host writes
 *   it, the device reads it: a slot is free again, and a flush is over, when it has come that far. A stale read only
 *   waits longer.
 * - `failed`: 1 + number of the request that failed first; 0 while none has. The host writes it before it counts the
 *   command as delivered; waiting threads read it after `delivered`, and leave.
 */
export const commandQueueHead = defineLayout(
  'CommandQueueHead',
  {
    delivered: 'u32',
    deliveredPad: { of: 'u32', count: 15 },
    failed: 'u32',
    failedPad: { of: 'u32', count: 15 },
  },
  64,
);

/**
 * The device's side of a queue, in its own memory.
 *
 * - `head`: commands begun so far, wraps. Any thread takes the next number by an atomic addition; a thread that finds no room until
 *   its deadline gives it back, the newest first, so that no number is left without a command.
 * - `knownDelivered`: the value of `delivered` that some thread read last, which saves most pushes a read of host memory.
 * - `lateAt`: the GPU's time when a wait for room expired last; 0 before. Threads that come within a deadline after it, and find
 *   `delivered` still at `lateSeen`, leave at once.
 * - `deferred`: not 0 after a deferred command, until somebody pushes one that makes the host take it.
 */
export const deviceQueue = defineLayout(
  'DeviceQueue',
  {
    head: 'u32',
    knownDelivered: 'u32',
    /** Commands of the ring, a power of two. */
    capacity: 'u32',
    capacityBits: 'u32',
    /** CommandQueueHead, with the ring behind it. */
    host: 'ptr',
    lateAt: 'u64',
    lateSeen: 'u32',
    deferred: 'u32',
  },
  64,
);

// What kernels hold of the host's agent: requests, their remote ranges, and what all of them share. In device memory.

/** What all requests and waits of a device share: `const DeviceHost*` is what kernels wait with. */
export const deviceHostState = defineLayout('DeviceHostState', {
  /** TrapRecord, in host memory. */
  trap: 'ptr',
  timeoutNs: 'u64',
  /** DeviceQueue[queueCount]; channel c uses queue c % queueCount. */
  queues: 'ptr',
  queueCount: 'u32',
  reserved: 'u32',
});

/** A range of the peer that a request may write: its memory as this process maps it, or none. */
export const deviceRemote = defineLayout('DeviceRemote', {
  /** 0 if only the host reaches it. */
  direct: 'ptr',
  bytes: 'u64',
});

/** Writes from one local range to the ranges of one peer; kernels hold its address. */
export const deviceRequest = defineLayout('DeviceRequest', {
  host: 'ptr',
  local: 'ptr',
  localBytes: 'u64',
  /** The first of `remotes`, which most requests have alone. */
  firstDirect: 'ptr',
  firstBytes: 'u64',
  /** DeviceRemote[remoteCount] */
  remotes: 'ptr',
  remoteCount: 'u32',
  /** What the host knows it by. */
  number: 'u32',
  /** Number of the peer at this host, for error messages. */
  peer: 'u32',
  /** 1: what is put through the queue travels in the command itself, if it is 8 bytes at multiples of 8. */
  inlines: 'u32',
});

// What the kernel of kernels/cuda/channel-put.cu takes, which carries out puts and signals between GPUs of a host.

export const channelPutArguments = defineLayout('ChannelPutArguments', {
  to: 'ptr',
  from: 'ptr',
  bytes: 'u64',
  /** u64, 0 for none: what `add` goes to behind the bytes. */
  counter: 'ptr',
  add: 'u64',
  /** u32 in host memory: becomes `operations` when all is visible. */
  done: 'ptr',
  /** Puts of the channel, up to this one. */
  operations: 'u32',
});

// The arguments of the kernels in kernels/cuda/two-process.cu and kernels/cuda/bench-device-api.cu.

/** The one who writes: pipeline puts of the same bytes, then one signal. */
export const twoProcessWriteArguments = defineLayout('TwoProcessWriteArguments', {
  /** u64 [requestCount]: request handles. At warp level with 32 of them each lane uses its own; otherwise the first. */
  requests: 'ptr',
  /** Handle of the request whose range holds the counter at its beginning. */
  signalRequest: 'u64',
  bytes: 'u64',
  add: 'u64',
  requestCount: 'u32',
  pipeline: 'u32',
});

/** The one who waits. */
export const twoProcessWaitArguments = defineLayout('TwoProcessWaitArguments', {
  counter: 'ptr',
  /** DeviceHostState. */
  waits: 'ptr',
  expected: 'u64',
});

/** Puts of a whole message by all blocks, each its part, again and again; then each block adds 1. */
export const benchDevicePutArguments = defineLayout('BenchDevicePutArguments', {
  request: 'ptr',
  signalRequest: 'ptr',
  bytes: 'u64',
  /** Bytes between the targets of messages that follow each other, which use `places` places in turn. */
  stride: 'u64',
  messages: 'u32',
  places: 'u32',
});

/** What the rounds of benchDevicePing send. */
export const benchPingKinds = { signal: 0, putWithSignal: 1, word: 2 } as const;

/** 8 bytes, a signal and a wait, there and back. */
export const benchDevicePingArguments = defineLayout('BenchDevicePingArguments', {
  request: 'ptr',
  signalRequest: 'ptr',
  waits: 'ptr',
  /** This side's counter, with a cell for words 16 bytes behind it, and where the peer's 8 bytes come. */
  counter: 'ptr',
  inbox: 'ptr',
  /** The local range of `request`: what is put. */
  outbox: 'ptr',
  /** u64 [2]: nanoseconds that all rounds took, rounds whose bytes were wrong. */
  result: 'ptr',
  rounds: 'u32',
  /** The counter's value before, and the round number that is put first. */
  first: 'u32',
  /** 1: begins; 0: answers. */
  begins: 'u32',
  /** One of benchPingKinds. */
  what: 'u32',
  /** 1: with Order::Relaxed. */
  isRelaxed: 'u32',
});

/** Signals as fast as they can be pushed, by the first lanes of every warp. */
export const benchDevicePushArguments = defineLayout('BenchDevicePushArguments', {
  request: 'ptr',
  count: 'u32',
  channels: 'u32',
  /** Pushes of each warp, which pushes for itself. */
  lanes: 'u32',
  isRelaxed: 'u32',
});
