// Tests of the guest in one process, because every start of Node takes a second there: those of the gate, or with the word
// "all" those as well that take minutes, because they start agents and ranks.
import { whyMissing } from '../../local/support/missing-backend.ts';

const gate = [
  'messages',
  'hot-path',
  'failures',
  'resources',
  'doctor',
  'gpu-memory',
  'agent-calls',
  'agent-failures',
  'verbs-idle',
  'transport-io',
  'transport',
];
const slow = ['verbs-conformance', 'flushed-conformance', 'ep-hosts'];
const parts = process.argv.includes('all') ? [...gate, ...slow] : gate;
// Before the first test: tests run while later parts load, and one of them takes a port down.
await whyMissing('verbs');
for (const part of parts) await import(`./${part}.js`);
