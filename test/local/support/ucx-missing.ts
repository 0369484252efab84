// What a process without libucp says: of an agent that must have the backend ucx, and of one that takes what there is.
import type { WeftlineError } from 'weftline';
import { Agent } from 'weftline/agent';

const forced = await Agent.create('forced', { backends: ['ucx'] }).catch((error: unknown) => error as WeftlineError);
await using free = await Agent.create('free');
const { code, message } = forced instanceof Agent ? { code: 'none', message: 'it was created' } : forced;
process.stdout.write(JSON.stringify({ code, message, backends: free.backends }));
