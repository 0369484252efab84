// Settings of the transport that suit a simulated network, whose hosts answer at once, better than threads that share cores.
import type { Settings } from '../../settings/settings.ts';

/**
 * For hosts of this rate, all their rails together. Twice the time that a burst of 64 KiB takes on a rail may be spent in
 * queues: 10 µs at 100 Gbps. Receivers grant what keeps each rail busy for a round trip.
 */
export function usualSettings(gigabitsPerSecond: number, rails = 1): Partial<Settings> {
  return {
    transportLinkGbps: gigabitsPerSecond,
    transportTargetDelayUs: Math.max(10, (1000 * rails) / gigabitsPerSecond),
    transportCtsBytes: Math.round(524_288 * Math.max(1, rails / 2, gigabitsPerSecond / 100)),
    transportMinRtoUs: 200,
    transportAckDelayUs: 10,
    transportChecksum: 'none',
  };
}
