// The congestion control that the settings name, for one window.
import type { TransportSettings } from '../engine/transport-settings.ts';
import type { Congestion } from './congestion.ts';
import { Cubic } from './cubic.ts';
import { EqdsCredits } from './eqds.ts';
import { FixedWindow } from './fixed-window.ts';
import { Swift } from './swift.ts';
import { Timely } from './timely.ts';

/** From half of the window to the whole takes this many round trips. */
const ROUND_TRIPS_TO_RECOVER = 64;

/** `segmentBytes` is a full packet, header included. */
export function createCongestion(settings: TransportSettings, segmentBytes: number): Congestion {
  const maxWindow = settings.windowBytes;
  switch (settings.congestion) {
    case 'swift':
      return new Swift({
        segmentBytes,
        maxWindow,
        baseTarget: settings.targetDelay,
        additiveIncrease: Math.max(1, maxWindow / 2 / ROUND_TRIPS_TO_RECOVER / segmentBytes),
      });
    case 'timely':
      return new Timely({
        segmentBytes,
        linkRate: settings.linkRate,
        low: settings.targetDelay,
        high: 10 * settings.targetDelay,
        maxWindow,
      });
    case 'cubic':
      return new Cubic({ segmentBytes, maxWindow });
    case 'eqds':
      return new EqdsCredits(maxWindow);
    case 'fixed':
      return new FixedWindow(maxWindow);
    case 'none':
      break;
  }
  return new FixedWindow(Number.POSITIVE_INFINITY);
}
