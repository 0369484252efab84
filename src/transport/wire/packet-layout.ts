// The packets of the software transport, little endian: what each kind begins with, and what follows.
import { defineLayout, wordOffsets } from '../../abi/layout.ts';

// The datagram that finds out how large a datagram may be: sent before a connection carries packets, then never again.

/** Mark in place of a version of the transport, so that a late probe is dropped like a stranger's packet. */
export const PROBE_MARK = 0x504c57ff;

/** Zeros follow up to `bytes`. */
export const transportProbe = defineLayout(
  'TransportProbe',
  { mark: 'u32', bytes: 'u32', secretLow: 'u32', secretHigh: 'u32' },
  4,
);

/** Goes up with every change of this file; packets of another version are dropped. */
export const TRANSPORT_VERSION = 7;

export const packetKinds = {
  /** A segment of a message, a write or the answer to a read: dataHeader, then `length` bytes of payload. */
  data: 1,
  /** What arrived: ackHeader, ackPath × `paths`, then `bitmapWords` words of 32 segments each. */
  ack: 2,
  /** Small records, ordered and reliable by repetition: controlHeader, then controlRecord × `records`. */
  control: 3,
  /** Asks for an ack at once, to measure or revive a path: dataHeader without payload and without a sequence. */
  probe: 4,
} as const;

/** Bits of `flags`. */
export const packetFlags = {
  /** `checksum` covers the header, whose own field counts as zero. */
  checksum: 1,
  /** `checksum` goes on over the payload. */
  payloadChecksum: 2,
  /** The receiver should acknowledge without delay. */
  ackNow: 4,
  /** A segment that takes its number and carries nothing: what it carried was cancelled. */
  skip: 8,
  /** Data: `target` is a registered region that the key opens; otherwise a request of the receiver. */
  region: 16,
  /**
   * Data: no payload; a number is added to the 64-bit cell at `base` of region `target` when all segments before this
   * one have arrived. `offset` holds its low 32 bits, `messageBytes` the others.
   */
  signal: 32,
  /** Ack: the sender has ended the connection for `reason`; what the ack says still counts. */
  reset: 64,
  /** Ack: control records came, and others before them are missing. */
  controlGap: 128,
  /**
   * Data: the payload is a part of a chunk and belongs at `offset` of the receiver's landing memory.
   */
  chunk: 256,
  /**
   * Data: a whole message that was sent before the receiver offered memory for it. `target` is its flow (low 16 bits) and
   * the slot (above) that the receiver keeps it in until it has a receive; `targetKey` is the sender's request, `base` the
   * number of the receive that it is meant for.
   */
  eager: 512,
  /**
   * Data, with `region`: no payload; when all segments before this one have arrived, a chunk is scattered into the region, and
   * only then has this segment arrived. The chunk has `messageBytes` bytes: first `base` places, chunkPlace each, then the
   * bytes of each, which begin at multiples of 8. The low 32 bits of `offset` are the CRC32C of the places, the others say
   * which chunk.
   */
  scatter: 1024,
  /**
   * Data, with `region`: the chunk holds only places, which are the ranges of the region that the sender wants to read. The low 32
   * bits of `base` count them, the bits above are the flow of the answers, `messageBytes` is the sender's request, and `offset`
   * is as for `scatter`. The answers are chunks. Behind each goes a segment with `scatter` and without `region`: its `target`
   * is that request, and the chunk's places say only the lengths of the request's next ranges.
   */
  gather: 2048,
} as const;

/** First of the flags of an ack that say, a bit for each slot, whose message has arrived and is not delivered. */
export const PARKED_SHIFT = 14;

/** The first fields of every packet. */
const prefix = {
  version: 'u8',
  kind: 'u8',
  flags: 'u16',
  /** The receiver's name for the connection. */
  connection: 'u32',
  /** Agreed on when both ends connected; a packet without it comes from a stranger. See also authenticPrefix. */
  secretLow: 'u32',
  secretHigh: 'u32',
  /** CRC32C, if `flags` says so. */
  checksum: 'u32',
  /** The path that the packet was sent on. */
  path: 'u16',
  /** Bytes behind the header. */
  length: 'u16',
} as const;

export const packetPrefix = defineLayout('TransportPrefix', prefix, 4);

/** The same on connections whose packets are authenticated: a tag and a number take the place of secret and checksum. */
export const authenticPrefix = defineLayout(
  'TransportAuthenticPrefix',
  {
    version: 'u8',
    kind: 'u8',
    flags: 'u16',
    connection: 'u32',
    /** Keyed tag of the whole packet, these eight bytes taken as zero, and of its number, all 64 bits of it. */
    tagLow: 'u32',
    tagHigh: 'u32',
    /** Low 32 bits of the packet's number in its connection and direction; no two packets have the same number. */
    number: 'u32',
    path: 'u16',
    length: 'u16',
  },
  4,
);

/** Bytes between the headers of a burst. */
export const DATA_HEADER_BYTES = 64;

export const dataHeader = defineLayout(
  'TransportData',
  {
    ...prefix,
    /** Number of the segment in its connection and direction, the same when it is sent again; wraps. */
    sequence: 'u32',
    /** Number of the transmission on its path, new each time; wraps. */
    pathSequence: 'u32',
    /** The sender's clock in microseconds, to be echoed; wraps. */
    timestamp: 'u32',
    /** Destination of the bytes: a request or a region of the receiver. */
    target: 'u32',
    /** Key of a region. */
    targetKey: 'u32',
    /** Bytes that the sender would like to have sent by now if it could, cumulative; wraps. For receiver credits. */
    demand: 'u32',
    /** Position of the payload in its message: low 32 bits. */
    offset: 'u32',
    /** Bytes of the whole message: low 32 bits. */
    messageBytes: 'u32',
    /** Position of the message in its region, or of a part in its message: low 32 bits. */
    base: 'u32',
    /** Bits 32 to 39 of `offset` and of `messageBytes`, bits 32 to 47 of `base`. */
    offsetHigh: 'u8',
    messageBytesHigh: 'u8',
    baseHigh: 'u16',
  },
  4,
);

/** Place of each field of a data header, in words. Several share the first, that of `path` and that of `offsetHigh`. */
export const dataWord: typeof dataHeader.offset = wordOffsets(dataHeader);

export const chunkPlace = defineLayout(
  'TransportPlace',
  {
    /** Position in the region: low 32 bits, then the others. */
    base: 'u32',
    baseHigh: 'u16',
    length: 'u16',
  },
  4,
);
export const PLACE_BYTES: number = chunkPlace.size;
/** The landing memory of a connection and direction: a peer may have so many chunks on their way, of so many bytes each. */
export const CHUNKS = 8;
export const CHUNK_BYTES = 131_072;
export const LANDING_BYTES: number = CHUNKS * CHUNK_BYTES;

export const ackHeader = defineLayout(
  'TransportAck',
  {
    ...prefix,
    /** Every segment before this one has arrived. */
    cumulative: 'u32',
    /** Every control record before this one has been carried out. */
    controlExpected: 'u32',
    /** Receiver credits: bytes that may have been sent by now, cumulative; wraps. */
    credit: 'u32',
    /** Segments that arrived more than once, cumulative: they were sent again too early. */
    duplicates: 'u32',
    /** How many ackPath records follow. */
    paths: 'u16',
    /**
     * How many words of the bitmap follow. Bit b of word w is segment (`cumulative` rounded down to a multiple of 32)
     * + 32 w + b, so that words of two acks can be compared as they are; bits before `cumulative` are set.
     */
    bitmapWords: 'u16',
    /** One of failReasons, if the flag `reset` is set. */
    reason: 'u32',
  },
  4,
);

/** The newest arrival of one path since the ack before. */
export const ackPath = defineLayout(
  'TransportAckPath',
  {
    path: 'u16',
    /** Packets of this path with an ECN mark since the ack before. */
    marks: 'u16',
    /** Highest `pathSequence` that arrived. */
    pathSequence: 'u32',
    /** The `timestamp` of that transmission. */
    timestamp: 'u32',
    /** Microseconds from its arrival to this ack. */
    hold: 'u32',
  },
  4,
);

export const controlHeader = defineLayout(
  'TransportControl',
  {
    ...prefix,
    /** Number of the first record that follows; the others follow on. */
    firstRecord: 'u32',
    records: 'u16',
    reserved: 'u16',
  },
  4,
);

export const controlKinds = {
  /**
   * Clear to send: request `a` of the receiver, the `b`-th receive of its flow, takes up to `bytes`, of which `more` may be
   * sent now.
   */
  clearToSend: 1,
  /** Up to `more` bytes of the message to request `a` may be sent. */
  grant: 2,
  /** A message of `bytes` is ready for request `a` and waits for its first grant. */
  requestToSend: 3,
  /** Please read `bytes` at `more` of region `a` with key `b`; the answer goes to request `c`. */
  read: 4,
  /** The segment `a` is not taken, for the reason `b`; `bytes` is the room that there is. */
  reject: 5,
  /** Request `a` of this record's receiver has failed for the reason `b`; `bytes` is what was asked or the room there is. */
  fail: 6,
  /** The receive that was announced as request `a` was withdrawn. */
  withdraw: 7,
  /**
   * Receives, `bytes` of them, from the `b`-th of their flow on, were withdrawn before they were announced; on
   * connections that keep their places.
   */
  vacant: 8,
  /** Slot `b` of the message that is request `a` of this record's receiver is free again; with `c` 1, it was delivered. */
  delivered: 9,
  /** The message for the `b`-th receive of the flow, request `a` of the sender, in slot `c`, is withdrawn. */
  retract: 10,
} as const;

/** Reasons in `reject` and `fail` records and in acks that end a connection. */
export const failReasons = {
  /** No region of that number is registered, or the key is not its key. */
  key: 1,
  /** The region does not allow what was asked. */
  access: 2,
  /** Bytes outside the region, or a cell that is not aligned to eight bytes. */
  bounds: 3,
  /** The message is larger than the buffer that was posted for it. */
  tooLarge: 4,
  /** The other side cancelled. */
  cancelled: 5,
  /** The connection was given up because nothing was heard. */
  silent: 6,
  /** The connection was closed. */
  closed: 7,
} as const;

export const controlRecord = defineLayout(
  'TransportControlRecord',
  {
    kind: 'u16',
    flow: 'u16',
    a: 'u32',
    b: 'u32',
    c: 'u32',
    bytes: 'u64',
    more: 'u64',
  },
  8,
);

/** Limits of the layout. */
export const MAX_PATHS = 256;
export const MAX_FLOWS = 65_536;
/** Receives of a connection that one side may have announced and the other has no message for. */
export const MAX_OPEN_RECEIVES = 4096;
/**
 * Messages of a connection and direction that may be sent before their receives are announced, at most 2. Nobody admits
 * them, so they are few: many senders with one receiver would fill the queue before it.
 */
export const EAGER_SLOTS = 2;
export const MAX_EAGER_BYTES = 8192;
export const MAX_MESSAGE_BYTES = 2 ** 40 - 1;
