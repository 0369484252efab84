// Settings of the transport that suit a simulated network, whose hosts answer at once, better than threads that share cores.
import type { Settings } from '../../settings/settings.ts';

export function usualSettings(gigabitsPerSecond: number): Partial<Settings> {
  return {
    transportLinkGbps: gigabitsPerSecond,
    transportTargetDelayUs: 10,
    transportCtsBytes: 524_288,
    transportMinRtoUs: 200,
    transportAckDelayUs: 10,
    transportChecksum: 'none',
  };
}
