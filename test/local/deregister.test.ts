// Memory that was deregistered is neither written nor read by a peer any more, whatever that peer has under way.
import { oneStagedConfiguration } from './support/agent-configurations.ts';
import { testDeregister } from './support/deregister-cases.ts';

for (const configuration of oneStagedConfiguration()) await testDeregister(configuration);
