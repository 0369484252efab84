// Prints the metadata of an agent with the default address.
import { Agent } from 'weftline/agent';

const agent = await Agent.create('far', { token: 'some', backends: ['multipath'] });
console.log(Buffer.from(agent.localMetadata()).toString('base64'));
await agent.close();
