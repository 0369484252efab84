// The expanded key that tags the packets of one direction, as kernels/wasm/packet-tag.ts reads it.
import { defineLayout } from './layout.ts';

export const packetKey = defineLayout(
  'PacketKey',
  {
    /** NH: the key of a kilobyte, and 16 bytes more for the second pass. */
    nh: { of: 'u8', count: 1024 + 16 },
    /** Poly1305: its multiplier, of which the kernel clears the bits that must be zero. */
    poly: { of: 'u8', count: 16 },
    /** SipHash. */
    sip: { of: 'u8', count: 16 },
  },
  16,
);
