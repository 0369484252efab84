// In the guest: agents that are linked by the backend verbs and have nothing to do.
import { testIdle } from './agent-idle.ts';

testIdle('verbs');
