// Serves a supergraph: answers each part of a query by the schema of the manager that has it.
//
//   node serve.mjs SUPERGRAPH.graphql MANAGER-URL HOST PORT
//
// Subscriptions are answered with an error: only the WebUI's notifications of a session that starts
// are made of them.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';

import { getStitchedSchemaFromSupergraphSdl } from '@graphql-tools/federation';
import { execute, parse } from 'graphql';

// What the web server says of the user; its signature is for the gateway's own address.
const FORWARDED = ['x-backendai-token', 'x-backendai-version', 'x-forwarded-for'];

const [supergraph, manager, host, port] = process.argv.slice(2);

const schema = getStitchedSchemaFromSupergraphSdl({
  supergraphSdl: readFileSync(supergraph, 'utf8'),
  httpExecutorOpts: ({ endpoint }) => ({
    endpoint: new URL(endpoint, manager).href,
    headers: (request) => request?.context ?? {},
  }),
});

function forwarded(headers) {
  return Object.fromEntries(
    FORWARDED.filter((name) => name in headers).map((name) => [name, headers[name]]),
  );
}

// Nothing is validated here: each schema validates its own part.
async function answer(request) {
  const { query, variables, operationName } = JSON.parse(await text(request));
  return execute({
    schema,
    document: parse(query),
    variableValues: variables,
    operationName,
    contextValue: forwarded(request.headers),
  });
}

createServer(async (request, response) => {
  let body = {};
  if (request.method === 'POST') {
    body = await answer(request).catch((error) => ({ errors: [{ message: error.message }] }));
  }
  response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
}).listen(Number(port), host);
