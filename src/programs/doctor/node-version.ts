// The version of Node.js.
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

export function checkNodeVersion({ nodeVersion }: MachineProbe): Finding {
  const name = 'Node.js';
  const [major = 0, minor = 0] = nodeVersion.split('.').map(Number);
  if (major < 20 || (major === 20 && minor < 19)) {
    const advice = 'weftline needs Node.js 20.19 or newer, 22 or newer is recommended';
    return { name, status: 'short', value: nodeVersion, advice, blocksCpu: true };
  }
  return { name, status: 'ok', value: major < 22 ? `${nodeVersion} (22 or newer is recommended)` : nodeVersion };
}
