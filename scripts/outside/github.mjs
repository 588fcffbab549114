// Every example payload of octokit, signed by octokit, to a real process: once, again, fifty times at once, and spoiled.
import assert from 'node:assert/strict'
import crypto from 'node:crypto'
import fs from 'node:fs'
import http from 'node:http'
import { createRequire } from 'node:module'
import { sign, verify } from '@octokit/webhooks-methods'

const examples = createRequire(import.meta.url)('@octokit/webhooks-examples')
const secret = 'octokit signs with this'
const agent = new http.Agent({ keepAlive: true, maxSockets: 16 })

function request(method, address, headers, body) {
  return new Promise((resolve, reject) => {
    const options = { socketPath: process.env.SOCKET, method, path: address, headers, agent, timeout: 30000 }
    const sent = http.request(options, (answer) => {
      const parts = []
      answer.on('data', (part) => parts.push(part))
      answer.on('end', () => resolve({ status: answer.statusCode, headers: answer.headers, text: Buffer.concat(parts).toString() }))
    })
    sent.on('error', reject)
    sent.end(body)
  })
}

async function main() {
  const book = fs.readFileSync(process.argv[2])
  assert.equal((await request('POST', '/v1/runbooks', { 'content-type': 'application/yaml' }, book)).status, 201)

  const deliver = async (event, id, body, signature) => {
    const headers = {
      'content-type': 'application/json',
      'user-agent': 'GitHub-Hookshot/test',
      'x-github-event': event,
      'x-github-delivery': id,
      ...(signature ?? { 'x-hub-signature-256': await sign(secret, body) }),
    }
    return request('POST', '/hooks/github', headers, body)
  }

  const all = examples.flatMap(({ name, examples }) => examples.map((payload) => ({ name, payload })))
  const wanted = ({ name, payload }) => name === 'issues' || (name === 'pull_request' && payload.action === 'opened')
  let runs = 0
  for (const [n, example] of all.entries()) {
    const body = JSON.stringify(example.payload)
    const id = `delivery-${n}`
    const first = await deliver(example.name, id, body)
    assert.equal(first.status, wanted(example) ? 201 : 200, `${example.name}: ${first.text}`)
    if (!wanted(example)) continue
    runs += JSON.parse(first.text).runs.length
    const again = await deliver(example.name, id, body)
    assert.equal(again.status, 200)
    assert.equal(again.headers['idempotent-replayed'], 'true')
    assert.equal(again.text, first.text)
  }
  assert.equal(runs, all.filter(wanted).length)

  const example = all.find(wanted)
  const body = JSON.stringify(example.payload)
  const burst = await Promise.all(Array.from({ length: 50 }, () => deliver(example.name, 'burst', body)))
  const ids = new Set(burst.filter(({ status }) => status !== 202).map(({ text }) => JSON.parse(text).runs[0].id))
  assert.equal(ids.size, 1, 'fifty at once make one run')
  assert.equal(burst.filter(({ status }) => status === 201).length, 1)

  const spoiled = {
    'written again': [JSON.stringify(example.payload, null, 1), { 'x-hub-signature-256': await sign(secret, body) }],
    'another secret': [body, { 'x-hub-signature-256': await sign('another', body) }],
    'sha1 alone': [body, { 'x-hub-signature': `sha1=${crypto.createHmac('sha1', secret).update(body).digest('hex')}` }],
    'no signature': [body, {}],
  }
  for (const [what, [bytes, signature]] of Object.entries(spoiled)) {
    const answer = await deliver(example.name, `spoiled ${what}`, bytes, signature)
    assert.equal(answer.status, 401, what)
  }
  assert.ok(await verify(secret, body, await sign(secret, body)))

  const listed = await request('GET', '/v1/runs?pipeline=note&limit=500', {})
  assert.equal(JSON.parse(listed.text).items.length, runs + 1)
  console.log(`${all.length} payloads of GitHub, ${runs + 1} runs, none twice`)
  agent.destroy()
}

await main()
