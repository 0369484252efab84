// In the guest: the backend ucx, with the word "all" in every case that backends of the agent have.
import { testBackend } from './agent-conformance.ts';
import { testIdle } from './agent-idle.ts';

await import('./ucx-calls.ts');
testIdle('ucx');
if (process.argv.includes('all')) await testBackend('ucx');
