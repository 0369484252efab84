// The port of an RDMA device that a backend uses.
import { WeftlineError } from '../../core/errors.ts';
import { isLogged, log } from '../../core/log.ts';
import { localFiles } from '../../native/file-probe.ts';
import { hostInterfaces } from '../../rails/rail-list.ts';
import { chooseRdma, type RdmaChoice, rdmaHardware, type RdmaRail } from '../../rails/rdma-choice.ts';
import type { Settings } from '../../settings/settings.ts';

interface RdmaPortChoice {
  readonly rail: RdmaRail;
  /** The address at which peers meet, if the settings say so. */
  readonly controlHost: string | undefined;
}

/** The first of the ports that may be used. Fails with WL_UNSUPPORTED if there is none, WL_CONFIG for wrong settings. */
export function choosePort(settings: Settings): RdmaPortChoice {
  const hardware = { devices: rdmaHardware(localFiles()), gpus: [], interfaces: hostInterfaces() };
  const choice = chooseRdma(hardware, settings);
  const [rail] = choice.rails;
  if (rail === undefined) throw noPort(choice);
  if (isLogged('agent', 'debug')) {
    log('agent', 'debug', `RDMA by ${rail.name} port ${rail.port} (${rail.gidReason}): ${choice.reason ?? ''}`);
  }
  return { rail, controlHost: choice.control?.addresses[0] };
}

function noPort({ others }: RdmaChoice): WeftlineError {
  const reasons = others.map(
    ({ name, port, reason }) => `${name}${port === undefined ? '' : ` port ${port}`}: ${reason}`,
  );
  const why = reasons.length === 0 ? 'it has no RDMA device' : reasons.join('; ');
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `This host has no port for RDMA: ${why}; the backend local serves peers of one host, and multipath those of others without RDMA`,
    { details: { others } },
  );
}
