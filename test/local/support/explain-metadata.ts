// Says why the agent whose metadata are argv[2] cannot be reached from here.
import { Agent } from 'weftline/agent';

const agent = await Agent.create('near', { token: 'some', backends: ['multipath'] });
const peer = await agent.loadRemoteMetadata(Buffer.from(process.argv[2] ?? '', 'base64'));
console.log(agent.explain(peer)[0]?.why);
await agent.close();
