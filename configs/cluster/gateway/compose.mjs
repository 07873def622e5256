// Composes the manager's two GraphQL schemas into one supergraph.
//
//   node compose.mjs GRAPHENE.graphql STRAWBERRY.graphql SUPERGRAPH.graphql
import { readFileSync, writeFileSync } from 'node:fs';

import { composeServices } from '@theguild/federation-composition';
import { parse } from 'graphql';

const [graphene, strawberry, target] = process.argv.slice(2);

// The newer schema takes fields over from the older one by the name "graphene".
// A URL is the path below the manager's address.
const { errors, supergraphSdl } = composeServices([
  { name: 'graphene', url: '/admin/gql', typeDefs: parse(readFileSync(graphene, 'utf8')) },
  {
    name: 'strawberry',
    url: '/admin/gql/strawberry',
    typeDefs: parse(readFileSync(strawberry, 'utf8')),
  },
]);
if (errors?.length) {
  throw new Error(errors.map((error) => error.message).join('\n'));
}
writeFileSync(target, supergraphSdl);
