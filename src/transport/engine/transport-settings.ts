// The transport's settings in the units of the protocol: microseconds, and bytes per microsecond.
import { type CongestionRule, congestionRules } from '../../congestion/congestion.ts';
import type { Settings } from '../../settings/settings.ts';

export interface TransportSettings {
  readonly congestion: Settings['transportCongestion'];
  /** Receivers give credits, at the speed of their links; of a connection, if either side wants it. */
  readonly receiverCredits: boolean;
  readonly perPath: boolean;
  readonly windowBytes: number;
  readonly windowSegments: number;
  readonly targetDelay: number;
  /** Bytes per microsecond: what this host can send and receive, and the share of it that this engine gives credits for. */
  readonly linkRate: number;
  readonly creditRate: number;
  readonly ctsBytes: number;
  readonly ctsChunkBytes: number;
  readonly eagerBytes: number;
  readonly minRto: number;
  readonly ackDelay: number;
  readonly ackSegments: number;
  readonly reorderSegments: number;
  /** Share of a round trip by which a segment must be overtaken at least before it counts as lost. */
  readonly reorderShare: number;
  readonly keepAlive: number;
  readonly giveUp: number;
  readonly checksum: Settings['transportChecksum'];
}

/** What suits ranks whose threads each have a core. */
const USUAL_TARGET_DELAY_US = 300;

/** `engines`: of this host, which share what bounds all that it receives. */
export function transportSettings(settings: Settings, engines = 1): TransportSettings {
  const ctsBytes = Math.floor(settings.transportCtsBytes / engines);
  const rule: CongestionRule = congestionRules[settings.transportCongestion];
  return {
    congestion: settings.transportCongestion,
    receiverCredits: settings.transportReceiverCredits || rule.receiverCredits === true,
    perPath: settings.transportCongestionScope === 'path',
    windowBytes: settings.transportWindowBytes,
    windowSegments: settings.transportWindowSegments,
    targetDelay: settings.transportTargetDelayUs || USUAL_TARGET_DELAY_US,
    linkRate: settings.transportLinkGbps * 125,
    creditRate: (settings.transportLinkGbps * 125) / engines,
    ctsBytes,
    // Half of the bytes are for receives that nobody has claimed yet, and one chunk must fit in each half.
    ctsChunkBytes: Math.min(settings.transportCtsChunkBytes, Math.floor(ctsBytes / 2)),
    eagerBytes: settings.transportEagerBytes,
    minRto: settings.transportMinRtoUs,
    ackDelay: settings.transportAckDelayUs,
    ackSegments: settings.transportAckSegments,
    reorderSegments: settings.transportReorderSegments,
    reorderShare: 1 / 4,
    keepAlive: settings.transportKeepAliveMs * 1000,
    giveUp: settings.transportGiveUpMs * 1000,
    checksum: settings.transportChecksum,
  };
}
