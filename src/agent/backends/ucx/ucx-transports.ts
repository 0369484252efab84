// Which transports UCX may use: those whose puts, gets and atomics an RDMA device carries out and checks.
import { WeftlineError } from '../../../core/errors.ts';
import { quote } from '../../../core/quote.ts';
import type { RdmaRail } from '../../../rails/rdma-choice.ts';
import type { Settings } from '../../../settings/settings.ts';

export interface UcxSettings {
  /** UCX's name of a setting, for `ucp_config_modify`, and its value. */
  readonly [name: string]: string;
}

/** Queue pairs of a reliable connection, with the datagrams that UCX connects them by. */
const DEFAULT_TRANSPORTS: readonly string[] = ['rc', 'dc'];
/** The names that bring the datagrams, too. */
const withDatagrams: Readonly<Record<string, string>> = {
  ib: 'rc',
  rc_verbs: 'rc_v',
  rc_mlx5: 'rc_x',
  dc_mlx5: 'dc_x',
};
const reliable = /^(rc|dc)(_\w+)?$/;
const unprefixed: Readonly<Record<string, string>> = { IB_PCI_RELAXED_ORDERING: 'PCI_RELAXED_ORDERING' };

/**
 * Of UCX_TLS, only what a device checks: over TCP, shared memory and datagrams UCX carries puts by messages, which its own
 * code writes to wherever they say. Fails with WL_UNSUPPORTED if nothing is left.
 */
export function chooseTransports(said: string | undefined): string {
  const words = (said ?? 'all')
    .replace(/^\^/, '')
    .split(',')
    .map((word) => word.trim().replace(/^\\/, ''))
    .map((word) => withDatagrams[word] ?? word);
  const isExcluding = said?.startsWith('^') === true;
  const isAny = isExcluding || words.includes('all');
  const names = isAny
    ? DEFAULT_TRANSPORTS.filter((name) => !isExcluding || !words.includes(name))
    : words.filter((word) => reliable.test(word));
  if (names.length > 0) return [...new Set(names)].join(',');
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `UCX_TLS=${quote(said ?? '')} leaves the backend ucx no transport: it needs reliable connections of an RDMA device (rc, dc), which check what peers write; use the backend local for peers of one host, and multipath for hosts without RDMA`,
    { details: { UCX_TLS: said } },
  );
}

/** Fails with WL_UNSUPPORTED. A variable of the user wins, but for the transports. */
export function ucxSettings(
  rail: RdmaRail,
  settings: Settings,
  env: Readonly<Record<string, string | undefined>> = process.env,
): UcxSettings {
  const wanted: readonly (readonly [variable: string, value: string])[] = [
    ['NET_DEVICES', `${rail.name}:${rail.port}`],
    ['IB_GID_INDEX', String(rail.gid.index)],
    ['IB_TRAFFIC_CLASS', String(settings.rdmaTrafficClass)],
    // Receivers look at memory: a write must not pass the one before it.
    ['IB_PCI_RELAXED_ORDERING', 'n'],
    // As the backend verbs has it: a peer that is silent, or whose refusal was lost, is given up after two seconds on most
    // devices. UCX has a second, which took half a minute in the guest.
    ['RC_TIMEOUT', '250ms'],
    // UCX's 7 is without end for rxe.
    ['RC_RETRY_COUNT', '6'],
    // Never by messages, which nobody checks.
    ['ATOMIC_MODE', 'device'],
  ];
  const unset = wanted.filter(([name]) => env[`UCX_${name}`] === undefined);
  // Up to some version the settings of memory have no prefix; a name that UCX does not know it leaves out.
  const names = unset.flatMap(([name, value]) =>
    name in unprefixed
      ? [
          [name, value],
          [unprefixed[name]!, value],
        ]
      : [[name, value]],
  );
  return { TLS: chooseTransports(env['UCX_TLS']), ...(Object.fromEntries(names) as UcxSettings) };
}
