// Runs the P2P bench over UCX again and again in fresh processes and counts those that did not end well: node scripts/ucx-stability.mjs [runs] [UCX_TLS]...
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const [runs = '100', ...transports] = process.argv.slice(2);
const main = fileURLToPath(new URL('../dist/programs/cli/main.js', import.meta.url));
const FIRST_PORT = 21_000;
const PORTS = 4000;

function start(role, port, transport) {
  const work = [
    '--mode',
    'write',
    '--sizes',
    '256,65536,1048576,10485760',
    '--iterations',
    '40',
    '--inflight',
    '4',
    '--pings',
    '40',
  ];
  const words = ['bench', 'p2p', '--role', role, '--backend', 'ucx', '--port', String(port), '--timeout', '20000'];
  const child = spawn(process.execPath, [main, ...words, ...(role === 'client' ? work : [])], {
    env: { ...process.env, UCX_TLS: transport },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let text = '';
  child.stderr.on('data', (chunk) => (text += chunk));
  const ended = new Promise((resolve) => {
    child.once('exit', (code, signal) => resolve({ role, end: signal ?? code, text }));
  });
  const listening = new Promise((resolve) => {
    child.stdout.on('data', (chunk) => {
      if (String(chunk).includes('Waiting for connection')) resolve();
    });
    child.once('exit', resolve);
  });
  return { ended, listening };
}

let failed = 0;
for (const transport of transports.length > 0 ? transports : ['tcp,self', 'posix,self']) {
  for (let run = 0; run < Number(runs); run += 1) {
    const port = FIRST_PORT + ((process.pid + run) % PORTS);
    const server = start('server', port, transport);
    await server.listening;
    const client = start('client', port, transport);
    for (const { role, end, text } of await Promise.all([server.ended, client.ended])) {
      if (end === 0) continue;
      failed += 1;
      console.log(`${transport} run ${run}: the ${role} ended with ${end}: ${text.trim().split('\n').at(-1) ?? ''}`);
    }
  }
  console.log(`${transport}: ${runs} runs, ${failed} processes so far did not end well`);
}
process.exitCode = failed === 0 ? 0 : 1;
