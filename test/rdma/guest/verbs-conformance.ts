// In the guest: the cases of every backend of the agent, over the backend verbs.
import { testBackend } from './agent-conformance.ts';

await testBackend('verbs');
